"""The report of a run: one self-contained page, also for incomplete runs, with all values escaped."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import nearkin
from nearkin.data import ImageFiles, LazyImages, Vectors, as_dataset
from nearkin.errors import UserError
from nearkin.experiments import run_report
from nearkin.experiments.run_report import gather, write_report
from nearkin.methods import DivideAndConquer
from nearkin.space import Space

QUICK: dict[str, Any] = {"epochs": 2, "batch_size": 16, "dim": 8, "device": "cpu"}
EVIL = "<script>alert('x')<|script>"  # a folder name cannot contain a slash


class Page(HTMLParser):
    """The tags, addresses, text and scripts of a page."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self.html = file.read_text()
        self.feed(self.html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_data(self, data: str) -> None:
        self.text += data

    @property
    def map(self) -> dict[str, Any]:
        found = re.search(r'<script type="application/json" id="map-data">(.*?)</script>', self.html)
        assert found
        return json.loads(found[1])  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def blots(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Grey images: 12 classes of eight; each class has its own blot, under noise."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(12), 8)
    pixels = rng.integers(0, 160, (12, 16, 16))[labels] + rng.integers(0, 96, (96, 16, 16))
    file = tmp_path_factory.mktemp("data") / "blots.npz"
    np.savez(file, images=pixels.astype(np.uint8), labels=labels)
    return str(file)


@pytest.fixture(scope="module")
def run(blots: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "blots"
    return nearkin.train(blots, out=folder, keep="best-on-test", split="first-half", **QUICK).folder


@pytest.fixture(scope="module")
def page(run: Path) -> Page:
    """The full report of the run, with its figures."""
    target = write_report(run)
    assert target == run / "report.html"
    return Page(target)


@pytest.fixture
def copied(run: Path, tmp_path: Path) -> Path:
    """A copy of the run that a test may change, with another file in place of the report."""
    folder = Path(shutil.copytree(run, tmp_path / "my run; it's"))
    (folder / "report.html").write_text("the last one")
    return folder


def test_the_page_tells_everything_and_fetches_nothing(run: Path, page: Page) -> None:
    assert len(page.html) < 5e6
    scores = json.loads((run / "scores.json").read_text())
    for words in (
        *("rank on blots", "backbone small", "8 dimensions", "best point of the test curve, which is optimistic"),
        *("Loss", "Learning rate", "Scores on the test split", "kept: epoch", "95 % interval", "What the scores mean"),
        *("Map of the space", "Nearest neighbours", "Classes", "Confusions", "Distances between pairs", "Spectrum"),
        *("alpha = 4.0", f"nearkin train --config {run / 'config.toml'}", nearkin.__version__),
        *(f"{scores[when]['map@r']:.4f}" for when in ("before", "after")),
    ):
        assert words in page.text, words
    assert 'class="protocol paper"' in page.html
    assert not {"link", "iframe", "object"} & set(page.tags)
    assert all(address.startswith(("#", "data:image/")) for address in page.addresses)
    assert all(address.startswith("data:image/") for address in re.findall(r"url\(([^#].*?)\)", page.html))
    pictures = {file.name for file in (run / "figures").iterdir()}
    names = ("loss", "scores", "learning-rate", "distances", "spectrum", "map", "neighbours")
    assert pictures == {f"{name}.{suffix}" for name in names for suffix in ("png", "svg")}
    assert len(page.map["x"]) == 48 and len(page.map["names"]) == 6


def test_a_split_is_embedded_once(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    whole: Callable[..., Space] = run_report.embed_dataset

    def counted(model: Any, dataset: Any) -> Space:
        passes.append(len(dataset))
        return whole(model, dataset)

    monkeypatch.setattr(run_report, "embed_dataset", counted)
    write_report(run, tmp_path / "elsewhere.html", figures=False)
    assert passes == [48] and (tmp_path / "elsewhere.html").is_file()


def test_the_map_shows_true_neighbours(run: Path, page: Page) -> None:
    found = page.map
    split = gather(run).split
    assert split is not None
    distances = torch.cdist(split.space.embeddings, split.space.embeddings)
    nearest = distances.fill_diagonal_(torch.inf).argmin(1)
    labels = np.unique(split.space.labels.numpy(), return_inverse=True)[1]
    assert found["label"] == labels.tolist()
    assert found["nearest"] == labels[nearest.numpy()].tolist()
    assert [found["cell"][row] for row in nearest.tolist()] == found["nearestCell"]


def test_class_names_cannot_break_the_page(photos: Path, tmp_path: Path) -> None:
    for name in ("class4", "class5"):  # the second half of the classes is the test split
        (photos / name).rename(photos / f"{name}{EVIL}")
    run = nearkin.train(photos, out=tmp_path / "run", backbone="small", image_size=16, **QUICK)
    page = Page(write_report(run.folder, figures=False))
    assert page.tags.count("script") == 3 and "alert('x')" not in page.html.replace("\\u003cscript>alert('x')", "")
    assert f"class4{EVIL}" in page.map["names"] and EVIL in page.text
    assert "data:image/jpeg" in page.html


def test_vectors_have_a_report_without_pictures(vectors: str, tmp_path: Path) -> None:
    run = nearkin.train(vectors, out=tmp_path / "run", **QUICK)
    page = Page(write_report(run.folder, figures=False))
    assert "Map of the space" in page.text and "data:image" not in page.html
    assert set(page.map["cell"]) == {-1} and set(page.map["nearest"]) != {-1}


def test_data_that_no_string_describes_are_given_again(vectors: str, tmp_path: Path) -> None:
    with np.load(vectors) as columns:
        arrays = columns["vectors"].astype(np.float32), columns["labels"]
    folder = nearkin.train(arrays, out=tmp_path / "run", **QUICK).folder
    alone, given = gather(folder), gather(folder, dataset=as_dataset(arrays))
    assert alone.split is None and "The data cannot be read" in alone.notices[0]
    assert given.split is not None and len(given.split.space) == 96 and not given.notices


def test_a_column_that_is_called_true_label_is_no_label(vectors: str, tmp_path: Path) -> None:
    with np.load(vectors) as columns:
        np.savez(tmp_path / "named.npz", **columns, true_label=np.arange(192) % 2)
    folder = nearkin.train(tmp_path / "named.npz", out=tmp_path / "run", **QUICK).folder
    report = gather(folder)
    assert report.split is not None and report.split.result is not None
    assert report.split.result.scores["recall@1"] == pytest.approx(report.after["recall@1"])


def test_without_a_test_split_another_one_is_shown(blots: str, tmp_path: Path) -> None:
    run = nearkin.train(blots, out=tmp_path / "run", split="all", validation=0.0, **QUICK)
    text = Page(write_report(run.folder, figures=False)).text
    assert "There is no test split: everything below shows the training split" in text and "96 items" in text
    with pytest.raises(UserError, match="split 'tests' is unknown"):
        write_report(run.folder, split="tests")


def test_an_interrupted_run_has_a_report(copied: Path) -> None:
    (copied / "scores.json").unlink()
    text = Page(write_report(copied, figures=False)).text
    assert "Training has not finished (epoch 2 of 2)" in text and "Map of the space" in text
    # Quoted for a shell, whatever the name of the folder.
    resume = f"nearkin resume {shlex.quote(str(copied))}"
    assert resume in text and f"nearkin train --config {shlex.quote(str(copied / 'config.toml'))}" in text
    shutil.rmtree(copied / "model")
    with pytest.raises(UserError, match=re.escape(f"no model yet; continue training with: {resume}")):
        write_report(copied)


@pytest.mark.parametrize("content", ['{"before": {"rec', "", "[1]"])
def test_damaged_scores_are_one_sentence(copied: Path, content: str) -> None:
    (copied / "scores.json").write_text(content)
    with pytest.raises(UserError, match=r"scores\.json is damaged .*; delete it and evaluate again with: nearkin"):
        write_report(copied)
    assert (copied / "report.html").read_text() == "the last one"


def test_scores_that_are_not_numbers_are_one_sentence(copied: Path) -> None:
    scores = json.loads((copied / "scores.json").read_text())
    (copied / "scores.json").write_text(json.dumps(scores | {"before": {"map": [[1.0]]}}))
    with pytest.raises(UserError, match=r"scores\.json is damaged \(before has a value that is not a number\)"):
        write_report(copied)


@pytest.mark.parametrize("training", ["", '[training]\nkeep = "none"'])
def test_settings_that_no_run_wrote_are_one_sentence(training: str, blots: str, copied: Path) -> None:
    (copied / "config.toml").write_text(f'[data]\nsource = "{blots}"\n{training}')
    with pytest.raises(UserError, match=r"config\.toml has changed since training \(keep is '(none)?'\); restore it"):
        write_report(copied)
    assert (copied / "report.html").read_text() == "the last one"


def test_a_split_that_is_not_there_leaves_the_last_report(copied: Path) -> None:
    with pytest.raises(UserError, match="this run has no validation split; choose test or train"):
        write_report(copied, split="validation")
    assert (copied / "report.html").read_text() == "the last one"


def test_a_damaged_model_is_not_taken_for_lost_data(copied: Path) -> None:
    (copied / "model" / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(UserError, match=r"^the model in .* cannot be read"):
        write_report(copied)
    assert (copied / "report.html").read_text() == "the last one"


def test_on_changed_data_only_what_is_measured_now_is_shown(page: Page, copied: Path) -> None:
    assert "→ </small>" in page.html and "before training" in page.text
    (copied / "data.sha256").write_text("of other data")
    scores = json.loads((copied / "scores.json").read_text())
    scores["before"]["map@r"] = 0.98765
    scores["after"] |= {"map@r": 0.98764, "soft_knn_error": 0.98763}
    (copied / "scores.json").write_text(json.dumps(scores))
    page = Page(write_report(copied, figures=False))
    assert "The data have changed since" in page.text and "95 % interval" in page.text
    assert "0.987" not in page.text and "→ </small>" not in page.html and "before training" not in page.text


def test_data_that_vanished_leave_the_rest(blots: str, copied: Path) -> None:
    config = copied / "config.toml"
    config.write_text(config.read_text().replace(blots, "gone.npz"))
    text = Page(write_report(copied, figures=False)).text
    after = json.loads((copied / "scores.json").read_text())["after"]["map@r"]
    assert "The data cannot be read" in text and "Left out: intervals, map" in text
    assert "Learning rate" in text and f"{after:.4f}" in text and "Map of the space" not in text


def test_one_class_alone_is_drawn_but_not_measured(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run_report.load_splits

    def one_class(*arguments: Any) -> Any:
        splits = whole(*arguments)
        first = splits.test.where(splits.test.labels == splits.test.labels[0])
        return type(splits)(**{**vars(splits), "test": first})

    monkeypatch.setattr(run_report, "load_splits", one_class)
    text = Page(write_report(copied, figures=False)).text
    assert "items to evaluate have the same class" in text and "may have been trained on test classes" in text
    assert "Map of the space" in text and "Confusions" not in text


@pytest.mark.parametrize(("method", "title"), [("magnet", "Clusters of classes"), ("divide-and-conquer", "Partition")])
def test_groups_of_the_method_are_shown(blots: str, tmp_path: Path, method: str, title: str) -> None:
    run = nearkin.train(blots, method, tmp_path / "run", **QUICK)
    for kept in (True, False):
        if not kept:
            run.checkpoint_file.unlink()
        text = Page(write_report(run.folder, figures=False)).text
        assert title in text and ("from the last checkpoint" in text) == kept
        if method == "magnet":
            clusters = [tuple(map(int, found)) for found in re.findall(r"cluster (\d) of (\d): (\d+) items", text)]
            assert sum(items for _, _, items in clusters) == 48 and {number for number, _, _ in clusters} == {1, 2}
        else:
            sizes = [int(size) for size in re.findall(r"learner \d+ (\d+) items of", text)]
            assert len(sizes) == 4 and sum(sizes) == 48


def test_groups_are_found_again_in_the_space_that_the_method_divides(
    blots: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = nearkin.train(blots, "divide-and-conquer", tmp_path / "run", **QUICK, cluster_by="features")
    run.checkpoint_file.unlink()
    seen: list[Space] = []
    on_refresh = DivideAndConquer.on_refresh
    monkeypatch.setattr(
        DivideAndConquer, "on_refresh", lambda self, space: on_refresh(self, seen.append(space) or space)
    )
    write_report(run.folder, figures=False)
    assert [space.dim for space in seen] == [run.model.model.width]


def test_thumbnails_of_an_object_are_read_one_after_the_other() -> None:
    lazy = LazyImages([Image.new("RGB", (4, 4), (200, 0, 0))], None, np.array([0]), "a list")
    found = run_report.thumbnails_of(lazy)
    assert found is not None and not found.threads and not found.grey
    picture = found.thumbnail(0, 8)
    assert picture is not None and picture.size == (8, 8) and picture.getpixel((0, 0)) == (200, 0, 0)
    files = run_report.thumbnails_of(ImageFiles([Path("gone.jpg")]))
    assert files is not None and files.threads and files.thumbnail(0, 8) is None
    assert run_report.thumbnails_of(Vectors(np.zeros((2, 2), np.float32))) is None
