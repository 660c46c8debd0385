"""The examples of README and docs are executed, so they cannot rot; the slow ones with a smaller budget."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import Command
from PIL import Image

import nearkin as package

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
HOW_TO = sorted((DOCS / "howto").glob("*.md"))
PAGES = [ROOT / "README.md", *(DOCS / f"{name}.md" for name in ("index", "methods", "reproduce", "extend")), *HOW_TO]

EACH_LINE = re.MULTILINE | re.DOTALL

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
    "train glyphs": "train glyphs:classes=24,per_class=10 --batch-size 32 --epochs 1",
    '"glyphs", ': '"glyphs:classes=40,per_class=12", batch_size=32, epochs=1, ',
}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), EACH_LINE)


def smaller(example: str) -> str:
    for slow, quick in SMALLER.items():
        example = example.replace(slow, quick)
    return example


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of someone who follows the examples: photos, a table of them, feature vectors."""
    make_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that "Get started" made, which the how-to pages go on with."""
    folder = tmp_path_factory.mktemp("trained")
    make_files(folder)
    return package.train(
        str(folder / "photos"), out=folder / "run", backbone="small", image_size=16, epochs=1, batch_size=9, per_class=3
    ).folder


def make_files(folder: Path) -> None:
    rng = np.random.default_rng(0)
    rows = []
    for animal in ("ant", "bee", "cat", "dog", "elk", "fox"):
        (folder / "photos" / animal).mkdir(parents=True)
        for number in range(1, 7):
            pixels = rng.integers(0, 255, (20, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "photos" / animal / f"{number}.jpg")
            rows.append([f"photos/{animal}/{number}.jpg", animal, "train" if animal < "d" else "test"])
    (folder / "photos.csv").write_text("\n".join(map(",".join, [["path", "label", "split"], *rows])) + "\n")
    (folder / "animals.txt").write_text("\n".join(map(" ".join, rows)) + "\n")
    np.savez(folder / "features.npz", vectors=rng.normal(size=(40, 5)), labels=np.arange(40) // 5)


def before(page: Path, trained: Path) -> None:
    """Makes what a page takes as given: the run of a how-to page, and the files that a page shows whole."""
    if page in HOW_TO:
        shutil.copytree(trained, "runs/photos-rank")
    for name, text in re.findall(r'^```python title="(\S+)"\n(.*?)^```$', page.read_text(encoding="utf-8"), EACH_LINE):
        Path(name).write_text(text, encoding="utf-8")


@pytest.mark.usefixtures("reader", "own_registries")
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "console")], ids=lambda page: page.name)
def test_shell_examples_work(page: Path, trained: Path, nearkin: Command) -> None:
    before(page, trained)
    for line in "".join(blocks(page, "console")).splitlines():
        words = shlex.split(smaller(line), comments=True)
        if words:
            assert words[0] == "nearkin", line
            outcome = nearkin(*words[1:])
            assert outcome.code == 0, f"{line}: {outcome.err}"


@pytest.mark.usefixtures("reader", "own_registries")
@pytest.mark.parametrize(
    "page", [page for page in (*PAGES, DOCS / "losses.md") if blocks(page, "python")], ids=lambda page: page.name
)
def test_python_examples_work(page: Path, trained: Path) -> None:
    before(page, trained)
    for example in blocks(page, "python"):
        exec(compile(smaller(example), page.name, "exec"), {})


@pytest.mark.parametrize("page", sorted([ROOT / "README.md", *DOCS.rglob("*.md")]), ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            file = page.parent / target
            assert file.exists() or file.with_suffix(".ipynb").exists(), target  # the site makes a page of a notebook


def test_the_docs_name_every_setting_with_its_default() -> None:
    from nearkin.training.settings import DataSettings, ModelSettings, TrainingSettings

    section = (DOCS / "howto" / "train.md").read_text(encoding="utf-8").partition("## Settings\n")[2]
    said = dict(re.findall(r"^\| `(\w+)` \| (.*?) ?\|", section, re.MULTILINE))
    kinds = (DataSettings, ModelSettings, TrainingSettings)
    defaults = {name: field.default for kind in kinds for name, field in kind.__dataclass_fields__.items()}
    assert list(said) == list(defaults)
    for name, words in said.items():
        if words and " " not in words:  # otherwise it depends on something
            assert_says(words, defaults[name], name)


def assert_says(words: str, value: object, name: str) -> None:
    words = words.strip("`")
    assert words.lower() == str(value).lower() or float(words) == value, name


def test_every_method_has_its_section_with_every_setting_and_default() -> None:
    from nearkin.methods import known_methods, make_method

    page = (DOCS / "methods.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    for method in known_methods():
        if method.paper:
            said = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", sections[method.name], re.MULTILINE))
            settings = make_method(method.name).settings()
            assert list(said) == list(settings)
            for name, value in settings.items():
                assert_says(said[name], value, name)


def test_every_loss_has_its_section() -> None:
    from nearkin import losses

    page = (DOCS / "losses.md").read_text(encoding="utf-8")
    for name in losses.__all__:
        if name.endswith("Loss") and name != "Loss":  # the base
            assert f"\n## {name}\n" in page


def test_the_readme_counts_recipes_right() -> None:
    from nearkin.experiments.recipes import known_recipes

    assert f"| {len(known_recipes())} recipes with" in (ROOT / "README.md").read_text(encoding="utf-8")
