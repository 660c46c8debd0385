"""A figure of queries with their nearest items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from nearkin.errors import UserError
from nearkin.files import atomic_path
from nearkin.names import printable
from nearkin.reports.figures import plain_figure
from nearkin.search import SearchResult

FORMATS = (".jpeg", ".jpg", ".pdf", ".png", ".svg", ".webp")
MAX_ROWS, MAX_HITS = 60, 20  # in one figure
QUERY, HIT, MISSING = "#444444", "#bbbbbb", "#dddddd"
SIDE = 128
Thumbnail = Callable[[Path, int], Image.Image | None]  # (file, side) -> image; None if it cannot be shown


def check_figure_name(file: Path) -> None:
    if file.suffix.lower() not in FORMATS:
        raise UserError(f"cannot save a figure as {file}; use a name that ends in one of {', '.join(FORMATS)}")


def draw_hits(file: Path, results: Sequence[SearchResult], thumbnail: Thumbnail, title: str = "") -> None:
    """Draws one row per query: the query, and its hits with distances and labels; at most 60 queries and 20 hits."""
    check_figure_name(file)
    results = results[:MAX_ROWS]
    columns = 1 + min(MAX_HITS, max(map(len, results)))
    figure = plain_figure(max(4.0, 1.3 * columns), 1.6 * len(results) + 0.5)
    grid = figure.subplots(len(results), columns, squeeze=False)
    for axes, result in zip(grid, results, strict=True):
        _draw(axes[0], thumbnail(Path(result.query), SIDE), "query", QUERY)
        for axis, hit in zip(axes[1:], result, strict=False):
            _draw(axis, thumbnail(Path(hit.path), SIDE), f"{hit.distance:.3f}\n{_short(hit.label)}", HIT)
        for axis in axes[1 + len(result) :]:
            axis.set_axis_off()
    figure.suptitle(printable(title), fontsize=10, parse_math=False)
    with atomic_path(file) as partial:
        figure.savefig(partial, dpi=110)


def _draw(axis: Any, image: Image.Image | None, title: str, colour: str) -> None:
    if image is not None:
        axis.imshow(np.asarray(image))
    else:
        axis.set_facecolor(MISSING)
        axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        axis.text(0.5, 0.5, "no image", ha="center", va="center", fontsize=8)
    axis.set_title(title, fontsize=8, parse_math=False)
    axis.set_xticks([])
    axis.set_yticks([])
    for spine in axis.spines.values():
        spine.set(color=colour, linewidth=2)


def _short(label: str, limit: int = 18) -> str:
    label = printable(label)
    return label if len(label) <= limit else label[: limit - 1] + "…"
