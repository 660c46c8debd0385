"""The output of a comparison: a self-contained page, concatenated models, provenance."""

from __future__ import annotations

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nearkin
from nearkin.data import load_dataset, make_splits
from nearkin.evaluation import evaluate
from nearkin.experiments import ComparisonResult, compare
from nearkin.experiments.comparison_page import comparison_page
from nearkin.experiments.comparison_plots import curves_figure, mean_curves, scores_figure
from nearkin.experiments.comparison_result import COLUMNS
from nearkin.experiments.concatenation import concatenated
from nearkin.experiments.provenance import provenance
from nearkin.models.embed import space_of
from nearkin.space import Space
from nearkin.training import Run
from nearkin.training.baseline import backbone_scores

GLYPHS = "glyphs:classes=12,per_class=6,size=16"
QUICK: dict[str, Any] = {"epochs": 2, "batch_size": 8, "dim": 8, "device": "cpu"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[ComparisonResult, Path]:
    out = tmp_path_factory.mktemp("compare")
    methods = ["triplet", "softmax", "spectral"]  # spectral fails: 8 items cannot span 8 dimensions
    return compare(GLYPHS, methods, out=out, seeds=2, **QUICK, concatenate=True), out


class Elements(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_holds_everything_and_fetches_nothing(made: tuple[ComparisonResult, Path]) -> None:
    found, out = made
    page = Elements((out / "comparison.html").read_text())
    assert page.tags.count("svg") == 2 and not {"script", "link", "img", "iframe"} & set(page.tags)
    assert all(address.startswith("#") for address in page.addresses)
    for words in [*(cell for row in found.rows() for cell in row), found.notes, found.refused["spectral"]]:
        assert words in page.text
    assert page.text.count("held-out training classes") == 1
    for words in ("margin = 0.2", "MAP@R on validation", found.made["hardware"]):
        assert words in page.text
    assert f"nearkin compare {GLYPHS} --methods triplet,softmax,spectral --seeds 2" in page.text


def test_names_and_reasons_cannot_break_the_page(made: tuple[ComparisonResult, Path], tmp_path: Path) -> None:
    evil = "<script>alert('$x$')</script>"
    Run(tmp_path / f"{evil.replace('/', '')}-0").create(Run(made[1] / "triplet-0").settings(), "")
    scores = {evil.replace("/", ""): {column: [0.5] for column in COLUMNS}}
    page = comparison_page(ComparisonResult("paper", scores, {"rank": evil}, command=evil), tmp_path)
    assert "<script" not in page and "&lt;script&gt;" in page
    assert 'class="protocol paper"' in page and "optimistic" in page


def test_models_together_are_their_embeddings_side_by_side(made: tuple[ComparisonResult, Path]) -> None:
    found, out = made
    test = make_splits(load_dataset(GLYPHS)).test
    assert test is not None
    pixels = test.items.pixels  # type: ignore[union-attr]
    sides = [nearkin.load(out / f"triplet-{seed}").encode(pixels) for seed in (0, 1)]
    expected = evaluate(space_of(torch.from_numpy(np.hstack(sides) / np.sqrt(2)), test)).scores
    for column in COLUMNS:
        assert found.concatenated["triplet, 2 models"][column] == pytest.approx(expected[column], abs=1e-6)
    together = {"triplet, 2 models", "softmax, 2 models"}
    assert {row[0] for row in found.rows()} == {"triplet", "softmax", "backbone alone"} | together


def test_the_backbone_alone_has_a_row_of_its_own(made: tuple[ComparisonResult, Path]) -> None:
    found, out = made
    expected = backbone_scores(Run(out / "triplet-0").settings())
    assert found.backbone == {name: expected[name] for name in COLUMNS}


def test_curves_are_kept_for_every_seed(made: tuple[ComparisonResult, Path]) -> None:
    found, out = made
    for method, curves in found.curves.items():
        for seed, curve in enumerate(curves):
            records = [each for each in Run(out / f"{method}-{seed}").metrics if each["kind"] == "evaluation"]
            assert curve == [(each["epoch"], each["map@r"]) for each in records] and len(curve) == 2
    epochs, means = mean_curves(found)["triplet"]
    assert epochs == [1, 2] and means[1] == np.mean([curve[1][1] for curve in found.curves["triplet"]])
    order = [np.mean(scores["map@r"]) for scores in found.all_scores().values()]
    assert order == sorted(order, reverse=True)


def test_each_run_is_told_by_the_machine_that_finished_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seeds, machine in ((1, "one"), (2, "two")):
        monkeypatch.setattr("nearkin.experiments.provenance.hardware", lambda _, machine=machine: machine)
        found = compare(GLYPHS, ["triplet"], out=tmp_path, seeds=seeds, **QUICK)
    assert found.made["hardware"] == "one, two"
    monkeypatch.setattr("nearkin.experiments.provenance.hardware", lambda _: "three")
    assert compare(GLYPHS, ["triplet"], out=tmp_path, seeds=1, **QUICK).made["hardware"] == "one"
    (tmp_path / "triplet-0" / "made.json").unlink()
    assert compare(GLYPHS, ["triplet"], out=tmp_path, seeds=2, **QUICK).made["hardware"] == "two, unknown"


def test_rows_measured_once_are_measured_again_for_other_data(tmp_path: Path) -> None:
    first = compare(GLYPHS, ["triplet"], out=tmp_path, seeds=2, **QUICK, concatenate=True)
    for seed in (0, 1):
        shutil.rmtree(tmp_path / f"triplet-{seed}")
    others = compare(GLYPHS + ",seed=1", ["triplet"], out=tmp_path, seeds=2, **QUICK, concatenate=True)
    alone = compare(GLYPHS + ",seed=1", ["triplet"], out=tmp_path / "alone", seeds=2, **QUICK, concatenate=True)
    assert first.backbone != others.backbone == alone.backbone
    rng = np.random.default_rng(0)
    backbones = []
    for _ in range(2):  # the same name, other content
        np.savez(tmp_path / "x.npz", vectors=rng.normal(size=(96, 4)), labels=np.arange(96) // 8)
        settings = {"epochs": 1, "batch_size": 16, "device": "cpu", "backbone": "linear"}
        backbones.append(
            compare(str(tmp_path / "x.npz"), ["triplet"], out=tmp_path / "x", seeds=1, **settings).backbone
        )
        shutil.rmtree(tmp_path / "x" / "triplet-0")
    assert backbones[0] != backbones[1]
    assert first.concatenated != others.concatenated == alone.concatenated


def test_one_seed_has_no_interval_and_says_so() -> None:
    scores = {name: [0.5] for name in COLUMNS}
    assert "one seed, so no interval" in ComparisonResult("fair", {"rank": scores}).markdown()


def test_tables_to_paste_tell_the_chosen_settings() -> None:
    scores = {name: [0.5, 0.6] for name in COLUMNS}
    found = ComparisonResult("fair", {"rank": scores}, chosen={"rank": {"per_class": 4}}, trials=3)
    assert "rank: per_class = 4" in found.markdown()
    assert r"rank: per\_class = 4" in found.latex() and found.latex().count(r"\caption") == 1


def test_joined_embeddings_keep_their_length() -> None:
    rng = torch.Generator().manual_seed(0)
    parts = [torch.nn.functional.normalize(torch.randn(5, width, generator=rng)) for width in (3, 4, 8)]
    spaces = [Space(part, torch.arange(5), torch.arange(5)) for part in parts]
    assert torch.allclose(concatenated(spaces).embeddings.norm(dim=1), torch.ones(5))


def test_a_comparison_says_when_and_on_what_it_was_made(made: tuple[ComparisonResult, Path]) -> None:
    found, out = made
    stored = json.loads((out / "comparison.json").read_text())
    assert stored["made"] == found.made == provenance("cpu")
    assert {"date", "hardware", "nearkin"} <= set(found.made) and "cores" in found.made["hardware"]
    assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in stored["seconds"].values())


def test_what_spectral_reads_out_with_sc_is_a_row_of_its_own(tmp_path: Path) -> None:
    found = compare(GLYPHS, ["spectral"], out=tmp_path, seeds=1, **(QUICK | {"batch_size": 24, "dim": 8}))
    after = Run(tmp_path / "spectral-0").scores["after"]
    assert found.read_outs == {"spectral, with SC": {score: [after[f"with_sc_{score}"]] for score in COLUMNS}}
    assert after["with_sc_map@r"] != after["map@r"]
    assert f"| spectral, with SC | {after['with_sc_recall@1']:.4f} |" in found.markdown()


def test_every_row_has_a_colour_and_a_line_style_of_its_own() -> None:
    names = [f"rank,alpha={number}" for number in range(12)]  # more than there are colours
    scores = {name: {"map@r": [0.5], "recall@1": [0.5]} for name in names}
    found = ComparisonResult("fair", scores, curves={name: [[(1, 0.5), (2, 0.6)]] for name in names})
    lines = curves_figure(found, mean_curves(found)).axes[0].lines
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == len(names)
    dots = [line.get_color() for line in scores_figure(found).axes[0].lines if line.get_marker() == "o"]
    assert len(set(dots)) > 1 and dots == [line.get_color() for line in lines]
