"""The figure of search results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nearkin.errors import UserError
from nearkin.reports.hits import draw_hits
from nearkin.search import Entry, Hit, SearchResult

MISSING = (0xDD, 0xDD, 0xDD)


def hit(label: str, distance: float, path: str = "/photos/1.jpg") -> Hit:
    return Hit(1, Entry(path, label, 0, 0), distance)


def share_of(colour: tuple[int, int, int], file: Path) -> float:
    return float((np.asarray(Image.open(file).convert("RGB")) == colour).all(2).mean())


def coloured(path: Path, side: int) -> Image.Image | None:
    """An image in the colour that the file is named after; None for any other name."""
    colours = {"green": (0, 255, 0), "red": (255, 0, 0)}
    return Image.new("RGB", (side, side), colours[path.stem]) if path.stem in colours else None


def test_the_figure_shows_the_query_and_its_hits(tmp_path: Path) -> None:
    results = [SearchResult("green.png", [hit("re$d$", 0.5, "red.png")])]
    draw_hits(tmp_path / "found.png", results, coloured, "in g$ $.index")
    assert share_of((0, 255, 0), tmp_path / "found.png") > 0.02 and share_of((255, 0, 0), tmp_path / "found.png") > 0.02
    assert share_of(MISSING, tmp_path / "found.png") < 0.001


def test_a_missing_file_is_a_grey_tile(tmp_path: Path) -> None:
    results = [SearchResult("green.png", [hit("a", 0.5, "red.png"), hit("b", 1.5, "gone.png")])]
    results += [SearchResult("red.png", [hit("a", 0.5, "red.png")])]
    draw_hits(tmp_path / "found.png", results, coloured)
    assert share_of(MISSING, tmp_path / "found.png") > 0.02


def test_an_unsupported_figure_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot save a figure as .*found\.txt; use a name that ends in one of"):
        draw_hits(tmp_path / "found.txt", [], coloured)
