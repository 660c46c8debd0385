"""The map of a part that can be walked through: where items lie, and what `run_map.js` needs to show them."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nearkin.report.map import class_colour, flat_places
from nearkin.report.run_facts import Looked
from nearkin.report.run_sheet import COLUMNS, Sheet
from nearkin.space import Space

MOST = 1500  # items on the map: t-SNE of them takes seconds, and their thumbnails a few megabytes at most
SIDE = 48  # of a thumbnail


@dataclass(frozen=True, eq=False)
class Map:
    """Some items in the plane.

    Attributes:
        rows: (items,) rows of the space.
        places: (items, 2) in the unit square, y downwards.
        colours: (items,) of their classes.
    """

    rows: npt.NDArray[np.int64]
    places: npt.NDArray[np.float64]
    colours: list[str]


def lay_out(space: Space, most: int = MOST, seed: int = 0) -> Map:
    """t-SNE of all items, or of as many drawn by chance."""
    rows = np.arange(len(space))
    if len(rows) > most:
        rows = np.sort(np.random.default_rng(seed).choice(rows, most, replace=False))
    own = np.unique(space.labels.numpy(), return_inverse=True)[1][rows]
    colours = ["#{:02x}{:02x}{:02x}".format(*class_colour(number)) for number in own.tolist()]
    return Map(rows, flat_places(space.embeddings.numpy()[rows], seed), colours)


def map_html(shown: Map, looked: Looked) -> str:
    """The canvas, its controls and its data; `run_map.js` brings them to life."""
    sheet = Sheet("map-sheet", looked.dataset.items, SIDE)
    data = _data(shown, looked, sheet)
    picture = f'<img id="map-sheet" alt="" hidden src="{sheet.uri()}">' if sheet.has_pictures else ""
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")  # no class name can end the script
    return (
        '<div class="controls"><label>classes <input id="map-filter" type="search" placeholder="part of a name">'
        '</label> <output id="map-count"></output> <button id="map-whole" type="button">whole map</button></div>'
        '<div id="map"><canvas aria-label="map of the space"></canvas><div class="card" hidden aria-live="polite">'
        '<div class="pair"><figure><canvas></canvas><figcaption></figcaption></figure>'
        "<figure><canvas></canvas><figcaption></figcaption></figure></div></div></div>"
        f'{picture}<script type="application/json" id="map-data">{text}</script>'
    )


def _data(shown: Map, looked: Looked, sheet: Sheet) -> dict[str, object]:
    """Columns over the items shown; ``nearest`` names a class by number, -1 where an item is no query."""
    space, rows = looked.space, shown.rows.tolist()
    nearest = np.full(len(space), -1)
    if looked.evaluation is not None and looked.evaluation.neighbours.shape[1]:
        nearest[space.queries.numpy()] = looked.evaluation.neighbours[:, 0].numpy()
    present, own = np.unique(space.labels.numpy(), return_inverse=True)
    near = nearest[shown.rows]
    return {
        "names": [looked.dataset.classes[label] for label in present],
        "x": shown.places[:, 0].round(4).tolist(),
        "y": shown.places[:, 1].round(4).tolist(),
        "colour": shown.colours,
        "label": own[shown.rows].tolist(),
        "cell": [sheet.cell(row) for row in rows],
        "nearest": np.where(near < 0, -1, own[near]).tolist(),
        "nearestCell": [sheet.cell(row) if row >= 0 else -1 for row in near.tolist()],
        "side": SIDE,
        "columns": COLUMNS,
    }
