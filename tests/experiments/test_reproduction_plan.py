"""Plans: what the user changes is listed, what is the same is trained once, what is not here is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import TINY_GLYPHS

from nearkin.errors import UserError
from nearkin.experiments.papers import read_table
from nearkin.experiments.recipes import read_recipe
from nearkin.experiments.reproduction_plan import Plan, datasets, make_plans


@pytest.fixture(autouse=True)
def _no_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "none").mkdir()
    monkeypatch.setenv("NEARKIN_DATA", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)


def told(plan: Plan) -> list[str]:
    """Where the run differs from the paper."""
    return plan.differs(plan.settings) if plan.settings else []


def planned(paper: str, name: str, data: dict[str, str] | None = None, **settings: Any) -> list[Plan]:
    return make_plans(read_table(paper, name), data or {}, settings, Path("out"))


def test_absent_datasets_are_found_absent_and_given_ones_present(tmp_path: Path, photos: Path) -> None:
    assert datasets(read_table("rank", "table-1")) == {"cub200": False, "cars196": False, "sop": False}
    found = planned("rank", "table-1", {"cars196": str(photos)})
    problems = {plan.dataset: plan.problem.partition(":")[0] for plan in found}
    assert problems == {"cub200": "not found", "cars196": "", "sop": "not found"}
    (tmp_path / "birds" / "CUB_200_2011").mkdir(parents=True)
    (tmp_path / "birds" / "CUB_200_2011" / "image_class_labels.txt").touch()
    found = planned("rank", "table-1", root=str(tmp_path / "birds"))
    assert {plan.dataset for plan in found if not plan.problem} == {"cub200"}


def test_a_folder_of_photos_keeps_the_papers_settings(photos: Path) -> None:
    plan = planned("rank", "table-1", {"cars196": str(photos)})[8]
    assert plan.settings is not None
    paper = read_recipe("cars196/triplet").changed(model={"dim": 64})
    assert plan.settings == paper.changed(data={"source": str(photos)}, training={"keep": "best-on-test"})
    assert (plan.dataset, plan.other_data) == ("cars196", str(photos))


def test_what_the_user_sets_is_listed_with_what_it_replaces() -> None:
    plan = planned("rank", "table-1", {"cub200": TINY_GLYPHS}, epochs=3, backbone="linear", keep="last")[0]
    assert "other settings: epochs = 3 instead of 222, backbone = linear instead of torchvision:googlenet" in (
        told(plan)
    )
    assert "protocol: last epoch" in told(plan)
    assert not any("backbone = small" in sentence for sentence in told(plan))


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
    (said,) = [each for each in told(ours) if each.startswith("open in Song et al. 2017")]
    assert "gamma = 10.0," in said and "epochs" not in said and "weight_decay" not in said
    assert "gamma_decay = 0.94 (how often)" in said and ", learning_rate = 0.0001" in said
    (said,) = [each for each in told(triplet) if each.startswith("open in")]
    assert "gamma" not in said and "momentum = 0.0" in said  # the recipe's own method is not trained


@pytest.mark.parametrize(
    ("paper", "name", "row", "expected"),
    [
        ("rank", "table-1", 0, "how Schall et al. 2019 chose is not said"),
        ("facility-location", "table-1", 3, "Song et al. 2017 reports a number of iterations at which training"),
        ("spectral", "table-1", 9, "Law et al. 2017 stops early, by what is not said"),
        ("divide-and-conquer", "table-3", 10, "how Sanakoyeu et al. 2019 chose is not said"),
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


def test_what_is_not_trained_differs_only_in_what_is_seen(photos: Path) -> None:
    plan = planned("spectral", "table-1", {"cub200": str(photos)}, epochs=3, dim=7, keep="last")[4]
    assert plan.row.untrained and words_of(plan) == {"other data", "vanilla", "network", "resize"}
    changed = planned("spectral", "table-1", {"cub200": str(photos)}, backbone="resnet18")[4]
    assert "other settings: backbone = resnet18 instead of torchvision:googlenet" in told(changed)


@pytest.mark.parametrize("name", ["table-6", "figure-1"])
def test_the_ablation_has_the_epochs_that_the_paper_gives_for_it(photos: Path, name: str) -> None:
    plan = planned("divide-and-conquer", name, {"sop": str(photos)})[1]
    assert "rates" in words_of(plan) and "epochs" not in words_of(plan)
    assert "epochs" in words_of(planned("divide-and-conquer", "table-1", {"sop": str(photos)})[-1])


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
    assert words_of(curves[0]) >= {"network", "weights", "augmentation", "test crops", "validation split", "negatives"}


def test_views_that_are_averaged_as_in_the_paper_are_no_difference(photos: Path) -> None:
    data = {"flowers102": str(photos)}
    triplet = planned("magnet", "table-4", data)[6]
    assert triplet.row.views == 16 and "test crops" not in words_of(triplet)
    assert "test crops" in words_of(planned("magnet", "table-4", data, augment="none")[6])


def test_a_number_that_stands_for_another_is_told_in_words() -> None:
    plan = planned("spectral", "table-1", {"cub200": TINY_GLYPHS})[9]  # not trained, so nothing is filled in yet
    (said,) = [each for each in told(plan) if each.startswith("settings for glyphs")]
    assert "image_size = the backbone's own instead of 227" in said
    assert "batch_size = the method's usual instead of 1260" in said and " = 0 " not in said
    back = planned("rank", "figure-4", {"mnist": TINY_GLYPHS}, image_size=12)[0]
    assert "other settings: image_size = 12 instead of the backbone's own" in told(back)


def test_batches_for_glyphs_shrink_where_the_data_cannot_fill_them() -> None:
    sizes = {}
    for source in ("glyphs:classes=12,per_class=12,size=16", TINY_GLYPHS):
        both = planned("magnet", "figure-5", {"dogs120": source})
        sizes[source] = [plan.settings.training.batch_size for plan in both if plan.settings]
    assert list(sizes.values()) == [[48, 48], [0, 0]]
    (given, _) = planned("magnet", "figure-5", {"dogs120": source}, batch_size=48)
    assert given.settings is not None and given.settings.training.batch_size == 48  # as wished, or not at all


def test_a_figure_falls_back_to_glyphs_and_prefers_what_is_here(photos: Path) -> None:
    fallback = planned("magnet", "figure-5", {"dogs120": TINY_GLYPHS})
    assert {plan.dataset for plan in fallback} == {"dogs120"} and len(fallback) == 2
    here = planned("magnet", "figure-5", {"pets37": str(photos), "flowers102": str(photos)})
    assert {plan.dataset for plan in here} == {"pets37", "flowers102"}
    assert [plan.other_data for plan in planned("rank", "figure-3")] == ["glyphs"] * 6


@pytest.mark.parametrize(
    ("data", "settings", "expected"),
    [
        ({"cub": "glyphs"}, {}, "did you mean 'cub200'"),
        ({"cub200": "birds"}, {}, "birds, which is to stand for cub200, was not found"),
        ({"cub200": "cars196"}, {}, "cars196, which .* was not found"),
        ({}, {"epoch": 3}, "did you mean 'epochs'"),
        ({}, {"source": "glyphs"}, "by the name that they stand for, one of cub200"),
        ({"cub200": TINY_GLYPHS}, {"epochs": -2}, "epochs must not be negative"),
    ],
)
def test_mistakes_are_refused_before_anything_is_trained(
    data: dict[str, str], settings: dict[str, Any], expected: str
) -> None:
    with pytest.raises(UserError, match=expected):
        planned("rank", "table-1", data, **settings)
