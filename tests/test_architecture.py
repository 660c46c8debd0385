"""The house stays as it was drawn: rooms import only from rooms above them, and importing nearkin stays cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "nearkin"
# Shared basics, which import each other alone; then every package imports only from those above it.
BASICS = {
    *("errors", "fields", "files", "messages", "names", "plugins", "progress", "signals", "space"),
    *("_mkl", "_torchvision"),
}
ORDER = [
    *("data", "sampling", "models", "clustering", "losses", "evaluation", "methods", "training", "estimator"),
    *("search", "reports", "experiments", "serve", "api", "__init__", "cli", "__main__"),
]


def imports_of(file: Path) -> set[str]:
    """The parts of nearkin that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("nearkin.")}
    return {"__init__" if name == "__version__" else name for name in found}


@pytest.mark.parametrize("file", sorted(ROOT.rglob("*.py")), ids=lambda file: str(file.relative_to(ROOT)))
def test_a_package_imports_only_from_those_above_it(file: Path) -> None:
    package = file.relative_to(ROOT).parts[0].removesuffix(".py")
    allowed = BASICS if package in BASICS else BASICS | set(ORDER[: ORDER.index(package) + 1])
    assert imports_of(file) <= allowed


def test_every_package_is_known() -> None:
    found = {path.name.removesuffix(".py") for path in ROOT.iterdir() if path.suffix in ("", ".py")}
    assert found - {"__pycache__"} == BASICS | set(ORDER)


def test_report_knows_no_method_and_no_dataset() -> None:
    for file in (ROOT / "reports").rglob("*.py"):
        assert not imports_of(file) & {"methods", "data", "models", "training"}, file.name


@pytest.mark.parametrize("entry", ["nearkin", "nearkin.cli"])
def test_importing_does_not_load_heavy_packages(entry: str) -> None:
    code = f"import {entry}, sys; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    heavy = {"torch", "numpy", "faiss", "sklearn", "matplotlib", "timm", "torchvision", "PIL", "numba"}
    assert not heavy & set(done.stdout.split())


def test_rooms_load_what_takes_seconds_only_where_it_is_used() -> None:
    code = "import nearkin.losses, nearkin.search, nearkin.training, nearkin.reports.figures, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    slow = {"torchvision", "torch._dynamo", "timm", "lightning_fabric", "lightning", "nearkin.experiments"}
    assert not slow & set(done.stdout.split())


def test_rooms_are_there_without_an_import_of_their_own() -> None:
    code = "import nearkin; print(nearkin.experiments.compare.__name__, hasattr(nearkin, 'nothing'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "compare False\n"


def test_losses_and_clustering_know_nothing_of_images_files_or_the_loop() -> None:
    for room in ("losses", "clustering"):
        for file in (ROOT / room).rglob("*.py"):
            assert imports_of(file) <= {room, "errors", "fields", "space", "clustering", "progress", "_mkl"}


def test_evaluation_knows_spaces_alone() -> None:
    for file in (ROOT / "evaluation").rglob("*.py"):
        assert imports_of(file) <= {"evaluation", "clustering", "errors", "progress", "space"}, file
