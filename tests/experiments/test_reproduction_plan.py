"""Plans: changes by the user are listed, equal rows share a run, missing data are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import TINY_GLYPHS

from nearkin.errors import UserError
from nearkin.experiments.papers import read_table
from nearkin.experiments.recipes import read_recipe
from nearkin.experiments.reproduction_plan import Plan, datasets, make_plans
from nearkin.training.prepare import load_splits


@pytest.fixture(autouse=True)
def _no_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "none").mkdir()
    monkeypatch.setenv("NEARKIN_DATA", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)


def told(plan: Plan) -> list[str]:
    """How the run differs from the paper."""
    return plan.differs(plan.settings) if plan.settings else []


def planned(paper: str, name: str, data: dict[str, str] | None = None, **settings: Any) -> list[Plan]:
    return make_plans(read_table(paper, name), data or {}, settings)


def test_absent_datasets_are_found_absent_and_given_ones_present(tmp_path: Path, photos: Path) -> None:
    assert datasets(read_table("rank", "table-1")) == {"cub200": False, "cars196": False, "sop": False}
    found = planned("rank", "table-1", {"cars196": str(photos)})
    assert {plan.dataset for plan in found if plan.settings} == {"cars196"}
    (tmp_path / "birds" / "CUB_200_2011").mkdir(parents=True)
    (tmp_path / "birds" / "CUB_200_2011" / "image_class_labels.txt").touch()
    found = planned("rank", "table-1", root=str(tmp_path / "birds"))
    assert {plan.dataset for plan in found if plan.settings} == {"cub200"}


def test_a_folder_of_photos_keeps_the_papers_settings(photos: Path) -> None:
    plan = planned("rank", "table-1", {"cars196": str(photos)})[8]
    assert plan.settings is not None
    paper = read_recipe("cars196/triplet").changed(model={"dim": 64})
    assert plan.settings == paper.changed(data={"source": str(photos)}, training={"keep": "best-on-test"})
    assert (plan.dataset, plan.other_data) == ("cars196", str(photos))


def test_settings_that_differ_are_listed_with_what_they_replace() -> None:
    plan = planned("rank", "table-1", {"cub200": TINY_GLYPHS}, epochs=3, backbone="linear", keep="last")[0]
    (said,) = [each for each in told(plan) if each.startswith("settings: ")]
    assert "epochs = 3 instead of 222" in said and "backbone = linear instead of torchvision:googlenet" in said
    assert "optimizer = adamw instead of sgd" in said  # glyphs need it
    assert "keep" not in said and "source" not in said and "dim" not in said
    assert "protocol: the model of the last epoch, not chosen by test scores" in told(plan)[2]
    assert not any(each.startswith("settings") for each in told(planned("rank", "table-1", {"cub200": "/"})[0]))


def test_a_setting_of_one_method_is_for_its_rows_alone() -> None:
    found = planned("rank", "table-1", {"cub200": TINY_GLYPHS}, alpha=2.0)
    methods = {plan.row.method for plan in found if any("alpha = 2.0 instead of 4.0" in each for each in told(plan))}
    assert methods == {"NRA (ours), d = 64", "NRA (ours), d = 512"}


def test_rows_that_differ_in_what_is_read_out_share_a_run_and_others_do_not() -> None:
    ours = planned("spectral", "table-1", {"cub200": TINY_GLYPHS})[8:]
    assert [plan.row.method for plan in ours if plan.row.prefix] == [
        "Ours (end-to-end/with SC)",
        "Ours (last layer/with SC)",
    ]
    folders = [plan.folder for plan in ours]
    assert folders[0] == folders[1] != folders[2] == folders[3]
    again = planned("spectral", "table-1", {"cub200": TINY_GLYPHS}, seed=1)[8:]
    assert not {plan.folder for plan in again} & set(folders)


def test_a_baseline_is_not_told_what_is_true_of_the_papers_own_method_alone(photos: Path) -> None:
    found = planned("spectral", "table-1", {"cub200": str(photos)})
    softmax, own = found[7], found[9]
    assert softmax.row.instead == "softmax" and not words_of(softmax) & {"gradient"}
    assert words_of(own) >= {"network", "resize", "crops", "gradient"} and "stopping" not in words_of(own)
    assert "stopping" in words_of(planned("spectral", "table-1", {"cub200": str(photos)}, keep="last")[9])


def test_what_a_recipe_chose_because_the_paper_is_silent_is_said(photos: Path) -> None:
    triplet, *_, ours = planned("facility-location", "table-1", {"cub200": str(photos)}, weight_decay=0.1)
    (said,) = [each for each in told(ours) if each.startswith("not stated by Song et al. 2017")]
    assert "gamma = 10.0," in said and "epochs" not in said and "weight_decay" not in said
    assert "gamma_decay_steps = 500, " in said and ", learning_rate = 0.0001" in said
    (said,) = [each for each in told(triplet) if each.startswith("not stated by")]
    assert "gamma" not in said and "momentum = 0.0" in said  # the recipe's method is replaced


@pytest.mark.parametrize(
    ("paper", "name", "row", "expected"),
    [
        ("rank", "table-1", 0, "Schall et al. 2019 does not say how it chose the epoch"),
        ("facility-location", "table-1", 3, "Song et al. 2017 reports a number of iterations at which training"),
        ("spectral", "table-1", 9, "Law et al. 2017 stops early and does not say by which criterion"),
        ("divide-and-conquer", "table-3", 10, "Sanakoyeu et al. 2019 does not say how it chose the epoch"),
        ("magnet", "table-4", 0, "Rippel et al. 2016 searches its settings on validation error"),
    ],
)
def test_how_a_paper_chose_is_told_as_that_paper_says(
    photos: Path, paper: str, name: str, row: int, expected: str
) -> None:
    data = dict.fromkeys(datasets(read_table(paper, name)), str(photos))
    (protocol,) = [each for each in told(planned(paper, name, data)[row]) if each.startswith("protocol")]
    assert expected in protocol


def words_of(plan: Plan) -> set[str]:
    return {sentence.partition(":")[0] for sentence in told(plan)}


def test_a_frozen_backbone_is_not_said_to_see_random_crops(photos: Path) -> None:
    whole, last_layer = (planned("spectral", "table-1", {"cub200": str(photos)})[row] for row in (8, 10))
    assert "crops" in words_of(whole) and "last layer" not in words_of(whole)
    assert "crops" not in words_of(last_layer) and {"last layer", "resize", "gradient"} <= words_of(last_layer)


def test_what_is_not_trained_has_no_protocol_and_nothing_of_its_recipe(photos: Path) -> None:
    plan = planned("spectral", "table-1", {"cub200": str(photos)})[4]
    assert plan.row.untrained and words_of(plan) == {"other data", "vanilla"}
    changed = planned("spectral", "table-1", {"cub200": str(photos)}, backbone="resnet18")[4]
    assert "settings: backbone = resnet18 instead of torchvision:googlenet" in told(changed)


def test_on_glyphs_nothing_is_said_of_networks_and_pictures_that_are_not_used(photos: Path) -> None:
    of_photographs = {
        "network",
        "resize",
        "crops",
        "weights",
        "augmentation",
        "test crops",
        "rates",
        "validation split",
    }
    for paper, name in (("spectral", "table-1"), ("magnet", "figure-5"), ("divide-and-conquer", "table-3")):
        data = dict.fromkeys(datasets(read_table(paper, name)), TINY_GLYPHS)
        for plan in planned(paper, name, data):
            assert not words_of(plan) & of_photographs
    curves = planned("magnet", "figure-5", {"flowers102": str(photos)})
    assert words_of(curves[4]) >= {"network", "weights", "augmentation", "test crops", "negatives"}


def test_the_official_validation_split_is_that_of_the_papers_own_data(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "validation split" not in words_of(planned("magnet", "figure-5", {"flowers102": str(photos)})[4])
    monkeypatch.setattr("nearkin.experiments.reproduction_plan._is_here", lambda *_: True)
    assert "validation split" in words_of(planned("magnet", "figure-5")[4])


def test_glyphs_for_known_classes_have_every_class_in_both_splits() -> None:
    triplet = planned("magnet", "figure-5", {"dogs120": TINY_GLYPHS})[0]
    options = TINY_GLYPHS.partition(":")[2]
    assert triplet.other_data == f"glyphs:test_per_class=6,{options}"
    assert planned("magnet", "figure-5", {"dogs120": "glyphs"})[0].other_data == "glyphs:test_per_class=6"
    own = planned("magnet", "figure-5", {"dogs120": "glyphs:per_class=8,test_per_class=2"})[0]
    test = load_splits(own.settings.data, 0).test if own.settings else None
    assert test is not None and len(test) == 2 * len(test.present_classes)  # the user's value wins


@pytest.mark.parametrize(
    ("data", "settings", "expected"),
    [
        ({"cub": "glyphs"}, {}, "did you mean 'cub200'"),
        ({"cub200": "birds"}, {}, "birds, the replacement for cub200, was not found"),
        ({"cub200": "cars196"}, {}, "cars196, the replacement .* was not found"),
        ({}, {"epoch": 3}, "did you mean 'epochs'"),
        ({}, {"source": "glyphs"}, "which dataset to replace; name one of cub200"),
        ({"cub200": TINY_GLYPHS}, {"epochs": -2}, "epochs must be an integer >= 0"),
    ],
)
def test_mistakes_are_refused_before_anything_is_trained(
    data: dict[str, str], settings: dict[str, Any], expected: str
) -> None:
    with pytest.raises(UserError, match=expected):
        planned("rank", "table-1", data, **settings)
