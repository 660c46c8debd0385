"""The examples of README and docs are executed, so they cannot rot; the slow ones with a smaller budget."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from conftest import Command
from PIL import Image

from nearkin.evaluation import metrics

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("index", "guide", "methods", "reproduce"))]

# What a reader would wait for or download, and what the test does instead.
SMALLER = {
    "make demo": "nearkin demo --epochs 1 --data glyphs:classes=40,per_class=12",
    "make test": "",  # this is it
    "backbone=MyNet())\nmodel": "backbone=MyNet(), image_size=16, epochs=1, batch_size=9, per_class=3)\nmodel",
    'backbone="resnet50"': 'backbone="small", image_size=16, epochs=1, batch_size=9, per_class=3',
    "--backbone resnet50 --method divide-and-conquer --set wraps=rank": (
        "--backbone small --set image_size=16 --epochs 1 --batch-size 9 --method divide-and-conquer "
        "--set wraps=rank:per_class=3"
    ),
    "--backbone resnet50": "--backbone small --set image_size=16 --epochs 1 --batch-size 9 --set per_class=3",
    "--batch-size 630 --micro-batch 105": "--micro-batch 6 --dim 16",
    "=glyphs": "=glyphs:classes=24,per_class=10 --set epochs=1 --set batch_size=24",
    "compare glyphs": "compare glyphs:classes=24,per_class=10 --set batch_size=32",
    "--epochs 30 --out runs/three": "--epochs 1 --out runs/three",
    "--epochs 30": "--epochs 1 --batch-size 9 --set per_class=3",
    "nearkin train glyphs": "nearkin train glyphs:classes=24,per_class=10 --batch-size 32 --epochs 1",
    '"glyphs", ': '"glyphs:classes=40,per_class=12", batch_size=32, epochs=1, ',
}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def smaller(example: str) -> str:
    for slow, quick in SMALLER.items():
        example = example.replace(slow, quick)
    return example


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of someone who follows the examples: photos, a table of them, feature vectors."""
    rng = np.random.default_rng(0)
    rows = ["path,label,split"]
    for animal in ("ant", "bee", "cat", "dog", "elk", "fox"):
        (tmp_path / "photos" / animal).mkdir(parents=True)
        for number in range(1, 7):
            pixels = rng.integers(0, 255, (20, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / animal / f"{number}.jpg")
            rows.append(f"photos/{animal}/{number}.jpg,{animal},{'train' if animal < 'd' else 'test'}")
    (tmp_path / "photos.csv").write_text("\n".join(rows) + "\n")
    np.savez(tmp_path / "features.npz", vectors=rng.normal(size=(40, 5)), labels=np.arange(40) // 5)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_shell_examples_work(page: Path, reader: Path, nearkin: Command) -> None:  # noqa: ARG001
    commands = [line for block in blocks(page, "console") for line in block.splitlines()]
    assert commands
    for line in commands:
        words = shlex.split(smaller(line), comments=True)
        if words:
            assert words[0] == "nearkin", line
            outcome = nearkin(*words[1:])
            assert outcome.code == 0, f"{line}: {outcome.err}"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "docs" / "losses.md"], ids=lambda page: page.name)
def test_python_examples_work(page: Path, reader: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    monkeypatch.setattr("nearkin.evaluation.metrics._metrics", dict(metrics._metrics))  # an example adds one
    for example in blocks(page, "python"):
        exec(compile(smaller(example), page.name, "exec"), {})


@pytest.mark.parametrize(
    "page", sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")]), ids=lambda page: page.name
)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            file = page.parent / target
            assert file.exists() or file.with_suffix(".ipynb").exists(), target  # the site makes a page of a notebook


def test_the_guide_names_every_setting() -> None:
    from nearkin.training.settings import DataSettings, ModelSettings, TrainingSettings

    guide = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    names = [name for kind in (DataSettings, ModelSettings, TrainingSettings) for name in kind.__dataclass_fields__]
    assert [name for name in names if f"`{name}`" not in guide] == []


def test_every_method_has_its_section_with_every_setting_and_default() -> None:
    from nearkin.methods import known_methods, make_method

    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    for method in known_methods():
        if method.paper:
            said = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", sections[method.name], re.MULTILINE))
            settings = make_method(method.name).settings()
            assert list(said) == list(settings)
            for name, value in settings.items():
                words = said[name].strip("`")
                assert words.lower() == str(value).lower() or float(words) == value, name


def test_every_loss_has_its_section() -> None:
    from nearkin import losses

    page = (ROOT / "docs" / "losses.md").read_text(encoding="utf-8")
    for name in losses.__all__:
        if name.endswith("Loss") and name != "Loss":  # the base
            assert f"\n## {name}\n" in page


def test_the_readme_counts_recipes_right() -> None:
    from nearkin.experiments.recipes import known_recipes

    assert f"{len(known_recipes())} settings of papers" in (ROOT / "README.md").read_text(encoding="utf-8")
