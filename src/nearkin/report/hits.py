"""What was found: tables for the terminal, and a picture of queries with their nearest items."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nearkin.data.items import ImageFiles
from nearkin.data.thumbnails import thumbnail
from nearkin.errors import UserError
from nearkin.files import atomic_path
from nearkin.report.figures import plain_figure
from nearkin.search.gallery import Gallery
from nearkin.search.matching import Match
from nearkin.search.store import Hit

PICTURES = {".jpeg", ".jpg", ".pdf", ".png", ".svg", ".webp"}
MOST_ROWS, MOST_HITS = 60, 20  # in one picture
QUERY, FOUND, GONE = "#444444", "#bbbbbb", "#dddddd"


def print_hits(queries: Sequence[Path], hits: Sequence[Sequence[Hit]]) -> None:
    """One table for each query: rank, distance, label and path of what was found."""
    for query, found in zip(queries, hits, strict=True):
        table = Table(title=Text(str(query)), title_justify="left")
        table.add_column("rank", justify="right")
        table.add_column("distance", justify="right")
        table.add_column("label")
        table.add_column("path", overflow="fold")
        for rank, hit in enumerate(found, start=1):
            # As text, because a name may hold what rich takes for markup.
            table.add_row(str(rank), f"{hit.distance:.4f}", Text(hit.entry.label), Text(hit.entry.path))
        _console().print(table)


def print_matches(queries: Sequence[Path], matches: Sequence[Match]) -> None:
    """One row for each query: what it is taken for, how many votes agree, and how near its nearest example is."""
    table = Table()
    table.add_column("query", overflow="fold")
    table.add_column("label")
    table.add_column("votes", justify="right")
    table.add_column("distance", justify="right")
    for query, match in zip(queries, matches, strict=True):
        label = Text("unknown", style="dim") if match.label is None else Text(match.label)
        table.add_row(Text(str(query)), label, f"{match.share:.0%}", f"{match.distance:.4f}")
    _console().print(table)


def _console() -> Console:
    """As wide as a path needs where nobody looks: a pipe or a file is searched and copied from."""
    console = Console()
    return console if console.is_terminal else Console(width=10_000)


def check_picture_name(file: Path) -> None:
    if file.suffix.lower() not in PICTURES:
        raise UserError(f"{file} is no picture's name; end it with one of {', '.join(sorted(PICTURES))}")


def draw_hits(file: Path, gallery: Gallery, queries: Sequence[Path], hits: Sequence[Sequence[Hit]]) -> None:
    """One row for each query: the query, and what was found with distances and labels, up to what one can hold."""
    check_picture_name(file)
    queries, hits = queries[:MOST_ROWS], [found[:MOST_HITS] for found in hits[:MOST_ROWS]]
    columns = 1 + max(map(len, hits))
    figure = plain_figure(max(4.0, 1.3 * columns), 1.6 * len(queries) + 0.5)
    grid = figure.subplots(len(queries), columns, squeeze=False)
    for axes, query, found in zip(grid, queries, hits, strict=True):
        _draw(axes[0], Path(query), "query", QUERY)
        for axis, hit in zip(axes[1:], found, strict=False):
            _draw(axis, Path(hit.entry.path), f"{hit.distance:.3f}\n{_short(hit.entry.label)}", FOUND)
        for axis in axes[1 + len(found) :]:
            axis.set_axis_off()
    figure.suptitle(f"Nearest of {len(gallery):,} items in {gallery.path.name}", fontsize=10, parse_math=False)
    with atomic_path(file) as partial:
        figure.savefig(partial, dpi=110)


def _draw(axis: Any, path: Path, title: str, colour: str) -> None:
    picture = thumbnail(ImageFiles([path]), 0, 128)
    if picture is not None:
        axis.imshow(np.asarray(picture))
    else:
        axis.set_facecolor(GONE)
        axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        axis.text(0.5, 0.5, "file is gone", ha="center", va="center", fontsize=8)
    axis.set_title(title, fontsize=8, parse_math=False)
    axis.set_xticks([])
    axis.set_yticks([])
    for spine in axis.spines.values():
        spine.set(color=colour, linewidth=2)


def _short(label: str, most: int = 18) -> str:
    return label if len(label) <= most else label[: most - 1] + "…"
