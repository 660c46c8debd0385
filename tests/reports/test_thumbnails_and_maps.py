"""Figures mark right and wrong neighbours; maps and sheets put every item in its place."""

from __future__ import annotations

import base64
import io
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from nearkin.evaluation import diagnostics, evaluate
from nearkin.reports.map import draw_map, project_2d
from nearkin.reports.neighbours import RIGHT, WRONG, draw_neighbours
from nearkin.reports.split import EmbeddedSplit
from nearkin.reports.thumbnails import COLUMNS, Sheet, Thumbnails
from nearkin.space import Space


def colour_share(file: Path, colour: str) -> float:
    wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    pixels = np.asarray(Image.open(file).convert("RGB"))
    return float((pixels == wanted).all(axis=2).mean())


def flat_grey(_: int, side: int) -> Image.Image:
    return Image.new("RGB", (side, side), (120, 120, 120))


def split_of(
    embeddings: torch.Tensor, labels: list[int], thumbnails: Thumbnails | None, kept: int = 10
) -> EmbeddedSplit:
    space = Space.of(embeddings, torch.tensor(labels))
    classes = [str(number) for number in range(max(labels) + 1)]
    result = evaluate(space, kept_neighbours=kept, clustering=None)
    return EmbeddedSplit("test", "toy", space, classes, thumbnails, result, diagnostics(space))


@pytest.mark.parametrize(("labels", "right", "wrong"), [([0, 0, 0, 1, 1, 1], True, False), ([0, 1] * 3, False, True)])
def test_right_neighbours_are_green_and_wrong_ones_red(
    tmp_path: Path, labels: list[int], right: bool, wrong: bool
) -> None:
    places = torch.tensor([0.0, 0.1, 0.2, 9.0, 9.1, 9.2]) if right else torch.tensor([0.0, 0.1, 5.0, 5.1, 9.0, 9.1])
    draw_neighbours(tmp_path / "n.png", split_of(places[:, None], labels, Thumbnails(flat_grey, grey=True), 1), rows=4)
    assert (colour_share(tmp_path / "n.png", RIGHT) > 0.01) == right
    assert (colour_share(tmp_path / "n.png", WRONG) > 0.01) == wrong


@pytest.mark.parametrize(
    ("places", "title"),
    [
        ([0.0, 0.1, 0.2, 9.0, 9.1, 9.2], "red ✗ other class"),
        ([0.0, 0.1, 8.9, 9.05, 9.1, 9.2], "red ✗ other class; in the last row, the first neighbour is wrong"),
        ([0.0, 5.0, 9.0, 0.1, 5.1, 9.1], "red ✗ other class; in the last 2 rows, the first neighbour is wrong"),
    ],
)
def test_the_title_counts_the_rows_whose_first_neighbour_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: list[float], title: str
) -> None:
    titles = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: titles.append(figure.get_suptitle()))
    monkeypatch.setattr("nearkin.reports.neighbours.atomic_path", nullcontext)
    draw_neighbours(tmp_path / "n.png", split_of(torch.tensor(places)[:, None], [0, 0, 0, 1, 1, 1], None, 1), rows=6)
    assert titles[0].endswith(title)


@pytest.mark.parametrize("thumbnails", [Thumbnails(flat_grey, grey=True), Thumbnails(flat_grey), None])
def test_the_map_draws_grey_images_colour_images_and_vectors(tmp_path: Path, thumbnails: Thumbnails | None) -> None:
    points = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    draw_map(tmp_path / "map.png", split_of(points, [0, 1, 2] * 10, thumbnails), side=400)
    pixels = np.asarray(Image.open(tmp_path / "map.png"))
    assert pixels.shape == (400, 400, 3)
    assert 0.001 < (pixels != 255).any(axis=2).mean() < 0.9


def test_the_map_keeps_clusters_together() -> None:
    rng = np.random.default_rng(0)
    centres = np.repeat([[0.0] * 5, [50.0] * 5], 20, axis=0)
    places = project_2d((centres + rng.normal(size=centres.shape)).astype(np.float32))
    assert places.min() >= 0 and places.max() <= 1
    between = np.linalg.norm(places[:20].mean(axis=0) - places[20:].mean(axis=0))
    within = np.linalg.norm(places[:20] - places[:20].mean(axis=0), axis=1).mean()
    assert between > 3 * within


@pytest.mark.parametrize("distinct", [1, 2, 3, 4])
def test_identical_items_are_at_the_same_point_of_the_map(distinct: int) -> None:
    points = np.arange(20) % distinct
    places = project_2d(np.random.default_rng(0).normal(size=(distinct, 5)).astype(np.float32)[points])
    assert np.abs(places - places[points]).max() < 1e-6
    assert len(np.unique(places[:distinct].round(3), axis=0)) == distinct


def test_a_line_stays_a_line_in_the_same_order() -> None:
    numbers = np.random.default_rng(0).normal(size=40).astype(np.float32)
    across, down = project_2d(numbers[:, None]).T
    assert (down == 0.5).all() and abs(np.corrcoef(across, numbers)[0, 1]) > 0.999


@pytest.mark.parametrize("vectors", [np.zeros((0, 4)), np.ones((1, 4)), np.ones((30, 4)), np.eye(2), np.eye(6)])
def test_a_map_of_few_items_is_still_a_map(vectors: np.ndarray) -> None:
    places = project_2d(vectors.astype(np.float32))
    assert places.shape == (len(vectors), 2)
    assert ((places >= 0) & (places <= 1)).all()


def test_a_sheet_has_every_image_in_its_cell() -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (COLUMNS + 3, 16, 16), dtype=np.uint8)
    sheet = Sheet("s", Thumbnails(lambda item, _: Image.fromarray(pixels[item]), grey=True), 16)
    cells = {item: sheet.cell(item) for item in reversed(range(len(pixels)))}
    drawn = np.asarray(Image.open(io.BytesIO(base64.b64decode(sheet.uri().partition(",")[2]))))
    for item, cell in cells.items():
        top, left = cell // COLUMNS * 16, cell % COLUMNS * 16
        there = drawn[top : top + 16, left : left + 16].astype(float)
        means = np.abs(pixels.astype(float) - there).mean(axis=(1, 2))
        assert int(means.argmin()) == item
    assert Sheet("v", None, 16).cell(1) == -1
