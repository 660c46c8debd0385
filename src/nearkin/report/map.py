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


def flat_places(embeddings: npt.NDArray[np.float32], seed: int = 0) -> npt.NDArray[np.float64]:
    """Where each embedding lies in the unit square: t-SNE, (items, 2); all in the middle where they are one point."""
    from sklearn.manifold import TSNE

    if (embeddings == embeddings[:1]).all():
        return np.full((len(embeddings), 2), 0.5)
    if embeddings.shape[1] < 2:
        embeddings = np.pad(embeddings, ((0, 0), (0, 1)))
    perplexity = min(30.0, max(1.0, (len(embeddings) - 1) / 3))
    with bar("drawing the map", None):
        flat = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(embeddings.astype(np.float64))
    low, high = flat.min(axis=0), flat.max(axis=0)
    return np.asarray((flat - low) / np.maximum(high - low, 1e-12), dtype=np.float64)


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
