"""The map of the space: a t-SNE plot with one colour per class, as an image file and in a page."""

from __future__ import annotations

import colorsys
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from nearkin.files import atomic_path
from nearkin.progress import bar
from nearkin.reports.split import EmbeddedSplit
from nearkin.reports.thumbnails import COLUMNS, Sheet, Thumbnails
from nearkin.space import Space

Colour = tuple[int, int, int]
Points = npt.NDArray[np.float64]
MAX_ITEMS = 1500  # on the map of a page: t-SNE takes seconds, and the thumbnails a few megabytes at most
SIDE = 48  # of a thumbnail, in pixels


def draw_map(
    file: Path, split: EmbeddedSplit, classes: int = 40, items: int = 1200, side: int = 1600, seed: int = 0
) -> None:
    """Draws the items of some random classes as thumbnails on a t-SNE map. Hundreds of classes would be unreadable."""
    rng = np.random.default_rng(seed)
    labels = split.space.labels.numpy()
    present = np.unique(labels)
    shown = rng.choice(present, min(classes, len(present)), replace=False)
    rows = rng.permutation(np.flatnonzero(np.isin(labels, shown)))[:items]
    points = project_2d(split.space.embeddings.numpy()[rows], seed)
    canvas = Image.new("RGB", (side, side), "white")
    thumb = side // 40
    colour_of = {label: class_colour(n) for n, label in enumerate(shown)}
    for row, (x, y) in zip(rows.tolist(), points, strict=True):
        corner = (round(x * (side - thumb)), round(y * (side - thumb)))
        _paste(canvas, split.thumbnails, row, corner, thumb, colour_of[labels[row]])
    with atomic_path(file) as partial:
        canvas.save(partial)


def project_2d(embeddings: npt.NDArray[np.float32], seed: int = 0) -> Points:
    """(items, dim) -> (items, 2) in the unit square, by t-SNE, or by PCA if there are too few distinct points.

    >>> project_2d(np.array([[0, 0], [3, 0]], dtype=np.float32)).tolist()
    [[0.0, 0.5], [1.0, 0.5]]
    """
    points = embeddings.astype(np.float64)
    few = points.shape[1] < 2 or len(np.unique(points, axis=0)) <= 4  # t-SNE would scatter identical items
    flat = _by_pca(points) if few else _by_tsne(points, seed)
    low, high = flat.min(axis=0, initial=np.inf), flat.max(axis=0, initial=-np.inf)
    return np.where(high - low > 1e-9, (flat - low) / np.maximum(high - low, 1e-9), 0.5)


def _by_pca(points: Points) -> Points:
    centred = points - points.mean(axis=0) if len(points) else points
    directions = np.linalg.svd(centred, full_matrices=False)[2][:2]
    return np.pad(centred @ directions.T, ((0, 0), (0, 2 - len(directions))))


def _by_tsne(points: Points, seed: int) -> Points:
    from sklearn.manifold import TSNE

    with bar("drawing the map", None):
        tsne = TSNE(perplexity=min(30.0, (len(points) - 1) / 3), init="pca", random_state=seed)
        return np.asarray(tsne.fit_transform(points), dtype=np.float64)


def _paste(
    canvas: Image.Image, thumbnails: Thumbnails | None, item: int, corner: tuple[int, int], side: int, colour: Colour
) -> None:
    image = None if thumbnails is None else thumbnails.thumbnail(item, side)
    box = (*corner, corner[0] + side, corner[1] + side)
    if image is None:
        ImageDraw.Draw(canvas).ellipse([corner, (corner[0] + side // 3, corner[1] + side // 3)], fill=colour)
    elif thumbnails is not None and thumbnails.grey:
        mask = image.convert("L")  # grey images are often drawings: draw them in the colour of the class
        canvas.paste(Image.new("RGB", mask.size, colour), corner, mask)
    else:
        canvas.paste(image, corner)
        ImageDraw.Draw(canvas).rectangle(box, outline=colour, width=2)


def class_colour(number: int) -> Colour:
    """Distinct colours for any number of classes: hues at the golden angle, in two alternating lightnesses."""
    red, green, blue = colorsys.hls_to_rgb(number * 0.618034 % 1.0, 0.38 if number % 2 else 0.52, 0.85)
    return round(red * 255), round(green * 255), round(blue * 255)


@dataclass(frozen=True, eq=False)
class Map:
    """Items in the plane.

    Attributes:
        rows: (items,) rows of the space.
        points: (items, 2) in the unit square, y downwards.
        colours: (items,) colours of their classes.
    """

    rows: npt.NDArray[np.int64]
    points: Points
    colours: list[str]


def lay_out(space: Space, limit: int = MAX_ITEMS, seed: int = 0) -> Map:
    """A t-SNE map of all items, or of a random sample of ``limit``."""
    rows = np.arange(len(space))
    if len(rows) > limit:
        rows = np.sort(np.random.default_rng(seed).choice(rows, limit, replace=False))
    classes = np.unique(space.labels.numpy(), return_inverse=True)[1][rows]
    colours = ["#{:02x}{:02x}{:02x}".format(*class_colour(number)) for number in classes.tolist()]
    return Map(rows, project_2d(space.embeddings.numpy()[rows], seed), colours)


def map_html(shown: Map, split: EmbeddedSplit) -> str:
    """The canvas, its controls and its data, for `run_map.js`."""
    sheet = Sheet("map-sheet", split.thumbnails, SIDE)
    data = _data(shown, split, sheet)
    image = f'<img id="map-sheet" alt="" hidden src="{sheet.uri()}">' if split.thumbnails else ""
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")  # no class name can end the script
    return (
        '<div class="controls"><label>Classes <input id="map-filter" type="search" placeholder="part of a name">'
        '</label> <output id="map-count"></output> <button id="map-whole" type="button">Reset zoom</button></div>'
        '<div id="map"><canvas aria-label="map of the space"></canvas><div class="card" hidden aria-live="polite">'
        '<div class="pair"><figure><canvas></canvas><figcaption></figcaption></figure>'
        "<figure><canvas></canvas><figcaption></figcaption></figure></div></div></div>"
        f'{image}<script type="application/json" id="map-data">{text}</script>'
    )


def _data(shown: Map, split: EmbeddedSplit, sheet: Sheet) -> dict[str, object]:
    """Columns over the items on the map; ``nearest`` is the number of a class, -1 for an item that is not a query."""
    space, rows = split.space, shown.rows.tolist()
    nearest = np.full(len(space), -1)
    if split.result is not None and split.result.neighbours.shape[1]:
        nearest[space.queries.numpy()] = split.result.neighbours[:, 0].numpy()
    present, classes = np.unique(space.labels.numpy(), return_inverse=True)
    near = nearest[shown.rows]
    return {
        "names": [split.classes[label] for label in present],
        "x": shown.points[:, 0].round(4).tolist(),
        "y": shown.points[:, 1].round(4).tolist(),
        "colour": shown.colours,
        "label": classes[shown.rows].tolist(),
        "cell": [sheet.cell(row) for row in rows],
        "nearest": np.where(near < 0, -1, classes[near]).tolist(),
        "nearestCell": [sheet.cell(row) if row >= 0 else -1 for row in near.tolist()],
        "side": SIDE,
        "columns": COLUMNS,
    }
