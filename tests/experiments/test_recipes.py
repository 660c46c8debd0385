"""Recipes run as written, say where each setting comes from, and are listed in the docs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm

from nearkin.data.benchmarks import is_benchmark
from nearkin.data.benchmarks.registry import registered
from nearkin.data.transforms import AUGMENTATIONS
from nearkin.errors import UserError
from nearkin.experiments.recipes import known_recipes, read_recipe, recipe_description
from nearkin.methods import make_method
from nearkin.models.backbones.googlenet import GOOGLENET
from nearkin.training.optimise import check

ROOT = Path(__file__).parents[2]
PROMISED = {
    "cub200": "rank facility-location spectral divide-and-conquer triplet lifted npairs proxy-nca",
    "cars196": "rank facility-location spectral divide-and-conquer triplet lifted npairs",
    "sop": "rank facility-location spectral divide-and-conquer triplet lifted npairs",
    "inshop": "divide-and-conquer margin",
    "vehicleid": "divide-and-conquer margin",
    "pets37": "magnet triplet",
    "flowers102": "magnet triplet",
    "dogs120": "magnet triplet",
    "imagenet-attributes": "magnet triplet",
    "imagenet-attributes-pairs": "magnet triplet",
}
# Settings found by benchmarks/real_data.py, on one backbone.
TUNED = "cub200-lite0"
TUNED_METHODS = "rank facility-location spectral divide-and-conquer magnet triplet margin proxy-nca"
# The training data of the papers: classes and images.
TRAINED_ON = {
    "cub200": (100, 5_864),
    TUNED: (75, 4_398),
    "cars196": (98, 8_054),
    "sop": (11_318, 59_551),
    "inshop": (3_997, 25_882),
    "vehicleid": (13_134, 110_178),
    "pets37": (37, 3_680),
    "flowers102": (102, 1_020),
    "dogs120": (120, 12_000),
    "imagenet-attributes": (90, 116_236),
    "imagenet-attributes-pairs": (45, 116_236),
}
each_recipe = pytest.mark.parametrize("name", known_recipes())
each_of_a_paper = pytest.mark.parametrize("name", [name for name in known_recipes() if not name.startswith(TUNED)])
each_tuned = pytest.mark.parametrize("method", TUNED_METHODS.split())


def text_of(name: str) -> str:
    return (ROOT / "src/nearkin/experiments/recipes" / f"{name}.toml").read_text(encoding="utf-8")


def test_every_dataset_and_method_of_the_papers_has_its_recipe() -> None:
    assert set(known_recipes()) == {
        f"{data}/{method}" for data, methods in {**PROMISED, TUNED: TUNED_METHODS}.items() for method in methods.split()
    }


@each_recipe
def test_a_recipe_can_be_trained_on_data_of_its_datasets_size(name: str) -> None:
    settings = read_recipe(name)
    check(settings.training)
    method = make_method(settings.method, **settings.method_settings)
    classes, images = TRAINED_ON[name.split("/")[0]]
    labels = np.arange(images) % classes
    size = settings.training.batch_size
    method.check(labels, settings.model.dim, size, settings.model.normalize or method.normalize)
    assert method.sampler(labels, size, seed=0).batch_size == size


@each_recipe
def test_a_recipe_is_for_the_dataset_and_method_of_its_name(name: str) -> None:
    settings = read_recipe(name)
    folder, method = name.split("/")
    source = settings.data.source
    assert (source.partition(":")[0], settings.method) == (folder.removesuffix("-pairs").removesuffix("-lite0"), method)
    assert settings.data.collapse_pairs == folder.endswith("-pairs")
    assert is_benchmark(source)
    assert settings.data.augment in AUGMENTATIONS
    assert settings.model.backbone == GOOGLENET or timm.is_model(settings.model.backbone)


@each_recipe
def test_batches_groups_and_slices_come_out_even(name: str) -> None:
    settings = read_recipe(name)
    method = make_method(settings.method, **settings.method_settings)
    size = settings.training.batch_size
    for part in ("per_class", "per_cluster"):
        assert size % getattr(method, part, 1) == 0
    assert size % (settings.training.micro_batch or size) == 0
    assert settings.model.dim % method.slices == 0


def test_the_spectral_paper_draws_512_classes_of_products() -> None:
    settings = read_recipe("sop/spectral")
    assert round(settings.method_settings["class_ratio"] * settings.training.batch_size) == 512


@each_of_a_paper
def test_iterations_are_epochs_of_whole_batches(name: str) -> None:
    settings = read_recipe(name)
    said = re.search(r"(\S+) · floor\((\S+) / (\S+)\) = (\S+) iterations", text_of(name))
    assert said
    epochs, images, size, iterations = (int(number.replace(",", "")) for number in said.groups())
    assert (epochs, size) == (settings.training.epochs, settings.training.batch_size)
    assert iterations == epochs * (images // size)
    assert images == TRAINED_ON[name.split("/")[0]][1]
    if is_benchmark(settings.data.source):
        assert images == registered(settings.data.source)[0].counts["train"]


@each_recipe
def test_every_setting_says_where_it_comes_from(name: str) -> None:
    assert re.fullmatch(r"\w+ et al\. \d{4}, .+: Table [I\d]+, .+|Tuned here on .+", recipe_description(name))
    before = ""
    for line in text_of(name).partition("\n[data]\n")[2].splitlines():
        if " = " in line and line.split()[0] not in ("#", "source", "name"):
            assert "  # " in line or before.startswith("# "), line
        before = line


def published(name: str) -> dict[str, Any]:
    return dict(json.loads((ROOT / f"docs/results/{name}.json").read_text(encoding="utf-8")))


def best_on_validation(comparison: dict[str, Any], method: str) -> float:
    """The best validation score, without seed 0, whose validation classes chose the trial."""
    return float(np.mean([max(value for _, value in curve) for curve in comparison["curves"][method][1:]]))


@each_tuned
def test_a_tuned_recipe_has_the_better_of_tuned_and_default_settings_on_validation_classes(method: str) -> None:
    default, tuned = published("cub"), published("cub-tuned")
    settings = read_recipe(f"{TUNED}/{method}")
    ours = settings.method_settings | {"learning_rate": settings.training.learning_rate}
    keep_tuned = best_on_validation(tuned, method) >= best_on_validation(default, method)
    if keep_tuned:
        expected = tuned["chosen"][method]
    else:
        usual = make_method(method)
        expected = {"learning_rate": 4e-4} | {
            key: getattr(usual, key) for key in tuned["chosen"][method] if hasattr(usual, key)
        }
    assert {key: ours[key] for key in expected} == pytest.approx(expected, rel=1e-3)
    scores = (tuned if keep_tuned else default)["scores"][method]["map@r"]
    assert f"MAP@R {np.mean(scores):.4f} ± " in recipe_description(f"{TUNED}/{method}")


@each_recipe
def test_the_rate_of_the_backbone_is_said_and_not_a_default(name: str) -> None:
    settings = read_recipe(name)
    assert settings.training.backbone_learning_rate > 0
    assert "weight_decay" in text_of(name) and "schedule" in text_of(name)


def test_the_docs_list_every_recipe_once() -> None:
    rows = re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs/recipes.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == known_recipes()


def test_an_unknown_recipe_is_told_the_nearest() -> None:
    for read in (read_recipe, recipe_description):
        with pytest.raises(UserError, match="recipe 'cub200/ranks' is unknown; did you mean 'cub200/rank'"):
            read("cub200/ranks")
    with pytest.raises(UserError, match="is unknown"):
        read_recipe("../recipes/cub200/rank")


def test_the_list_of_recipes_comes_without_loading_torch() -> None:
    listing = "from nearkin.cli import app; app(['recipes'], standalone_mode=False)"
    code = f"import sys; {listing}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "cub200/rank" in done.stdout
    assert done.stdout.endswith("False\n")
