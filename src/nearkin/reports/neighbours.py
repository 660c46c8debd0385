"""A figure of nearest neighbours: one query per row, right neighbours framed in green and wrong ones in red."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from nearkin.files import atomic_path
from nearkin.reports.figures import plain_figure
from nearkin.reports.split import EmbeddedSplit
from nearkin.reports.thumbnails import Thumbnails

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RIGHT, WRONG, QUERY = "#2a9d4a", "#d1373c", "#444444"
SIDE, STRIDE = 96, 108  # of a thumbnail and its cell, in pixels


def draw_neighbours(file: Path, split: EmbeddedSplit, rows: int = 12, seed: int = 0) -> None:
    """Draws random queries with their nearest neighbours; up to a third have a wrong first neighbour and come last."""
    assert split.result is not None
    labels = split.space.labels.numpy()
    first_is_right = labels[split.result.neighbours[:, 0].numpy()] == labels[split.space.queries.numpy()]
    others, errors = _choose(first_is_right, rows, seed)
    last = "row" if len(errors) == 1 else f"{len(errors)} rows"
    remark = f"; in the last {last}, the first neighbour is wrong" if len(errors) else ""
    figure = neighbours_figure(split, [*others, *errors], remark)
    with atomic_path(file) as partial:
        figure.savefig(partial, dpi=110)


def neighbours_figure(split: EmbeddedSplit, chosen: Sequence[int], remark: str = "") -> Figure:
    """Draws queries, given as positions in ``space.queries``, each in a row with its nearest neighbours."""
    from matplotlib.patches import Rectangle

    assert split.result is not None
    labels, neighbours = split.space.labels.numpy(), split.result.neighbours.numpy()
    queries = split.space.queries.numpy()
    columns = 1 + neighbours.shape[1]
    figure = plain_figure(0.8 * columns, 0.8 * len(chosen) + 0.6)
    axes = figure.add_subplot()
    sheet = np.full((STRIDE * len(chosen), STRIDE * columns, 3), 255, np.uint8)
    for row, query in enumerate(chosen):
        for column, item in enumerate([queries[query], *neighbours[query]]):
            left, top = STRIDE * column, STRIDE * row
            _paste(sheet[top : top + STRIDE, left : left + STRIDE], split.thumbnails, int(item))
            right = labels[item] == labels[queries[query]]
            colour, sign = (QUERY, "") if column == 0 else (RIGHT, "✓") if right else (WRONG, "✗")
            corner = (left + 4, top + 4)
            axes.add_patch(Rectangle(corner, STRIDE - 8, STRIDE - 8, fill=False, color=colour, linewidth=3))
            box = {"facecolor": colour, "linewidth": 0, "pad": 1.5}
            axes.text(left + 101, top + 101, sign, ha="right", va="bottom", color="white", fontsize=7, bbox=box)
    axes.imshow(sheet)
    axes.set_xticks([STRIDE / 2, 1.5 * STRIDE][:columns], ["query", "nearest →"][:columns], fontsize=9)
    axes.tick_params(length=0, top=False, bottom=False, labeltop=True, labelbottom=False)
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    title = f"Nearest neighbours in {split.dataset}: green ✓ same class, red ✗ other class{remark}"
    figure.suptitle(title, fontsize=10, parse_math=False, wrap=True)
    return figure


def _choose(first_is_right: npt.NDArray[np.bool_], rows: int, seed: int) -> tuple[list[int], list[int]]:
    """Chooses random queries, and among them up to a third whose first neighbour is wrong; returns those separately."""
    rng = np.random.default_rng(seed)
    wrong = np.flatnonzero(~first_is_right)
    errors = rng.choice(wrong, min(rows // 3, len(wrong)), replace=False)
    others = np.setdiff1d(np.arange(len(first_is_right)), errors)
    return rng.choice(others, min(rows - len(errors), len(others)), replace=False).tolist(), errors.tolist()


def _paste(cell: npt.NDArray[np.uint8], thumbnails: Thumbnails | None, item: int) -> None:
    image = None if thumbnails is None else thumbnails.thumbnail(item, SIDE)
    if image is not None:
        top, left = (STRIDE - image.height) // 2, (STRIDE - image.width) // 2
        cell[top : top + image.height, left : left + image.width] = np.asarray(image)
