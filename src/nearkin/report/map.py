"""The map of the space: t-SNE, every item drawn where it lies, every class in a colour of its own."""

from __future__ import annotations

import colorsys
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from nearkin.data.dataset import Dataset
from nearkin.data.items import ImageArray
from nearkin.files import atomic_path
from nearkin.progress import bar
from nearkin.report.thumbnails import thumbnail
from nearkin.space import Space

Colour = tuple[int, int, int]
Places = npt.NDArray[np.float64]


def draw_map(
    file: Path,
    dataset: Dataset,
    space: Space,
    classes: int = 40,
    items: int = 1200,
    side: int = 1600,
    seed: int = 0,
) -> None:
    """Draws the items of some classes (all of 200 would be a cloud) as thumbnails at their places in the plane."""
    rng = np.random.default_rng(seed)
    present = np.unique(space.labels.numpy())
    shown = rng.choice(present, min(classes, len(present)), replace=False)
    rows = np.flatnonzero(np.isin(space.labels.numpy(), shown))
    rows = rng.permutation(rows)[:items]
    places = flat_places(space.embeddings.numpy()[rows], seed)
    canvas = Image.new("RGB", (side, side), "white")
    thumb = side // 40
    colour_of = {label: class_colour(n) for n, label in enumerate(shown)}
    for row, (x, y) in zip(rows, places, strict=True):
        colour = colour_of[int(space.labels[row])]
        corner = (round(x * (side - thumb)), round(y * (side - thumb)))
        _place(canvas, dataset, int(row), corner, thumb, colour)
    with atomic_path(file) as partial:
        canvas.save(partial)


def flat_places(embeddings: npt.NDArray[np.float32], seed: int = 0) -> Places:
    """(items, dim) -> (items, 2) in the unit square: by t-SNE, or where it has too little to go by, by main directions.

    >>> flat_places(np.array([[0, 0], [3, 0]], dtype=np.float32)).tolist()
    [[0.0, 0.5], [1.0, 0.5]]
    """
    points = embeddings.astype(np.float64)
    few = points.shape[1] < 2 or len(np.unique(points, axis=0)) <= 4  # t-SNE scatters the items of one point
    flat = _along_main_directions(points) if few else _by_tsne(points, seed)
    low, high = flat.min(axis=0, initial=np.inf), flat.max(axis=0, initial=-np.inf)
    return np.where(high - low > 1e-9, (flat - low) / np.maximum(high - low, 1e-9), 0.5)


def _along_main_directions(points: Places) -> Places:
    centred = points - points.mean(axis=0) if len(points) else points
    directions = np.linalg.svd(centred, full_matrices=False)[2][:2]
    return np.pad(centred @ directions.T, ((0, 0), (0, 2 - len(directions))))


def _by_tsne(points: Places, seed: int) -> Places:
    from sklearn.manifold import TSNE

    with bar("drawing the map", None):
        tsne = TSNE(perplexity=min(30.0, (len(points) - 1) / 3), init="pca", random_state=seed)
        return np.asarray(tsne.fit_transform(points), dtype=np.float64)


def _place(
    canvas: Image.Image, dataset: Dataset, item: int, corner: tuple[int, int], side: int, colour: Colour
) -> None:
    picture = thumbnail(dataset.items, item, side)
    box = (*corner, corner[0] + side, corner[1] + side)
    if picture is None:
        ImageDraw.Draw(canvas).ellipse([corner, (corner[0] + side // 3, corner[1] + side // 3)], fill=colour)
    elif isinstance(dataset.items, ImageArray) and dataset.items.channels == 1:
        ink = picture.convert("L")  # grey pictures are ink: drawn in the class's colour on a shared sheet
        canvas.paste(Image.new("RGB", ink.size, colour), corner, ink)
    else:
        canvas.paste(picture, corner)
        ImageDraw.Draw(canvas).rectangle(box, outline=colour, width=2)


def class_colour(number: int) -> Colour:
    """Colours that stay apart however many there are: hues by the golden angle, two lightnesses in turn."""
    red, green, blue = colorsys.hls_to_rgb(number * 0.618034 % 1.0, 0.38 if number % 2 else 0.52, 0.85)
    return round(red * 255), round(green * 255), round(blue * 255)
