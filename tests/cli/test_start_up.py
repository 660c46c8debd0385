"""Commands import only what they need: a mistake in a path is reported before torch is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nearkin.data.images import Unreadable

CODE = """
import sys
from nearkin import cli
try:
    cli.main()
except SystemExit:
    import json
    print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def imported(*arguments: str) -> tuple[str, set[str]]:
    """The message on standard error, and the packages that were imported."""
    command = [sys.executable, "-c", CODE, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return ended.stderr, set(json.loads(ended.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "nowhere"), "folder or dataset 'nowhere' is unknown"),
        (("index", "resnet50", "no/where"), "file or folder no/where does not exist"),
        (("search", "nowhere", "x.jpg"), "nowhere is not a gallery"),
    ],
)
def test_a_path_that_does_not_exist_is_reported_before_torch_is_imported(
    arguments: tuple[str, ...], message: str
) -> None:
    found, packages = imported(*arguments)
    assert message in found
    assert not packages & {"torch", "matplotlib", "sklearn", "timm"}


def test_a_query_that_does_not_exist_is_reported_as_by_the_library(tmp_path: Path) -> None:
    description = {"format": 1, "dim": 8, "model": "", "store": ""}
    (tmp_path / "gallery.json").write_text(json.dumps(description))
    found, packages = imported("search", str(tmp_path), "nowhere.jpg")
    assert f"{Unreadable(Path('nowhere.jpg'), 'no such file')}; fix this file or leave it out" in found
    assert "torch" not in packages


def test_search_and_training_import_nothing_slow_but_torch() -> None:
    code = """
import sys, nearkin.search.gallery, nearkin.training.loop
nearkin.training.loop.make_fabric(nearkin.training.TrainingSettings(device="cpu"))
print(*sys.modules)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    packages = {name.partition(".")[0] for name in ended.stdout.split()}
    assert "lightning_fabric" in packages
    assert not packages & {"matplotlib", "numba", "pandas", "scipy", "sklearn", "timm", "torchmetrics", "torchvision"}
