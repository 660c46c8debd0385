"""Pictures show what they claim: right and wrong neighbours marked, every item at its place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nearkin.data import Dataset, ImageArray, ImageFiles, Vectors, images, load_dataset
from nearkin.evaluation import evaluate
from nearkin.models.embed import space_of
from nearkin.report.map import draw_map, flat_places
from nearkin.report.neighbours import RIGHT, WRONG, draw_neighbours
from nearkin.report.thumbnails import thumbnail


def colour_share(file: Path, colour: str) -> float:
    wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    pixels = np.asarray(Image.open(file).convert("RGB"))
    return float((pixels == wanted).all(axis=2).mean())


def grey_dataset(labels: list[int]) -> Dataset:
    pixels = np.full((len(labels), 8, 8), 120, dtype=np.uint8)
    return Dataset("toy", ImageArray(pixels), np.array(labels), [str(n) for n in range(max(labels) + 1)])


@pytest.mark.parametrize(("labels", "right", "wrong"), [([0, 0, 0, 1, 1, 1], True, False), ([0, 1] * 3, False, True)])
def test_right_neighbours_are_green_and_wrong_ones_red(
    tmp_path: Path, labels: list[int], right: bool, wrong: bool
) -> None:
    dataset = grey_dataset(labels)
    places = torch.tensor([0.0, 0.1, 0.2, 9.0, 9.1, 9.2]) if right else torch.tensor([0.0, 0.1, 5.0, 5.1, 9.0, 9.1])
    space = space_of(places[:, None], dataset)
    draw_neighbours(tmp_path / "n.png", dataset, space, evaluate(space, kept_neighbours=1, clustering=None), rows=4)
    assert (colour_share(tmp_path / "n.png", RIGHT) > 0.01) == right
    assert (colour_share(tmp_path / "n.png", WRONG) > 0.01) == wrong


def test_an_item_that_cannot_be_decoded_has_no_thumbnail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (10, 5)).save(tmp_path / "x.jpg")
    items = ImageFiles([tmp_path / "x.jpg", tmp_path / "gone.jpg"])
    seen = thumbnail(items, 0, 64)
    assert seen is not None and seen.size == (64, 32)
    assert thumbnail(items, 1, 64) is None
    monkeypatch.setattr(images, "MAX_PIXELS", 49)
    assert thumbnail(items, 0, 64) is None


def test_the_map_draws_grey_pictures_photos_and_vectors(tmp_path: Path, photos: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = Dataset("v", Vectors(np.zeros((30, 2), np.float32)), np.arange(30) % 3, ["a", "b", "c"])
    for name, dataset in {
        "grey": grey_dataset([0, 1, 2] * 10),
        "photos": load_dataset(str(photos)),
        "vectors": vectors,
    }.items():
        space = space_of(torch.randn(len(dataset), 4, generator=generator), dataset)
        draw_map(tmp_path / f"{name}.png", dataset, space, side=400)
        pixels = np.asarray(Image.open(tmp_path / f"{name}.png"))
        assert pixels.shape == (400, 400, 3)
        assert 0.001 < (pixels != 255).any(axis=2).mean() < 0.9


def test_the_map_keeps_clusters_together() -> None:
    rng = np.random.default_rng(0)
    centres = np.repeat([[0.0] * 5, [50.0] * 5], 20, axis=0)
    places = flat_places((centres + rng.normal(size=centres.shape)).astype(np.float32))
    assert places.min() >= 0 and places.max() <= 1
    between = np.linalg.norm(places[:20].mean(axis=0) - places[20:].mean(axis=0))
    within = np.linalg.norm(places[:20] - places[:20].mean(axis=0), axis=1).mean()
    assert between > 3 * within


@pytest.mark.parametrize("distinct", [1, 2, 3, 4])
def test_items_at_one_point_of_the_space_are_at_one_place_of_the_map(distinct: int) -> None:
    points = np.arange(20) % distinct
    places = flat_places(np.random.default_rng(0).normal(size=(distinct, 5)).astype(np.float32)[points])
    assert np.abs(places - places[points]).max() < 1e-6
    assert len(np.unique(places[:distinct].round(3), axis=0)) == distinct


def test_a_line_stays_a_line_in_its_order() -> None:
    numbers = np.random.default_rng(0).normal(size=40).astype(np.float32)
    across, down = flat_places(numbers[:, None]).T
    assert (down == 0.5).all() and abs(np.corrcoef(across, numbers)[0, 1]) > 0.999


@pytest.mark.parametrize("vectors", [np.zeros((0, 4)), np.ones((1, 4)), np.ones((30, 4)), np.eye(2), np.eye(6)])
def test_a_map_of_nearly_nothing_is_still_a_map(vectors: np.ndarray) -> None:
    places = flat_places(vectors.astype(np.float32))
    assert places.shape == (len(vectors), 2)
    assert ((places >= 0) & (places <= 1)).all()
