"""What was found, as a picture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from reference.untrained import save_untrained

from nearkin.errors import UserError
from nearkin.report.hits import draw_hits
from nearkin.search import Entry, Gallery, Hit, SearchResult

GONE = (0xDD, 0xDD, 0xDD)


@pytest.fixture
def gallery(photos: Path, tmp_path: Path) -> Iterator[Gallery]:
    with Gallery.index(save_untrained(tmp_path / "model"), photos, tmp_path / "g$ $.index") as opened:
        yield opened


def hit(label: str, distance: float, path: str = "/photos/1.jpg") -> Hit:
    return Hit(1, Entry(path, label, 0, 0), distance)


def share_of(colour: tuple[int, int, int], file: Path) -> float:
    return float((np.asarray(Image.open(file).convert("RGB")) == colour).all(2).mean())


def test_the_picture_shows_the_query_and_what_was_found(gallery: Gallery, photos: Path, tmp_path: Path) -> None:
    green, red = tmp_path / "green.png", photos / "class0" / "red.png"
    Image.new("RGB", (30, 30), (0, 255, 0)).save(green)
    Image.new("RGB", (30, 30), (255, 0, 0)).save(red)
    draw_hits(tmp_path / "found.png", gallery, [SearchResult(str(green), [hit("re$d$", 0.5, str(red))])])
    assert share_of((0, 255, 0), tmp_path / "found.png") > 0.02 and share_of((255, 0, 0), tmp_path / "found.png") > 0.02


def test_a_vanished_file_is_a_grey_tile(gallery: Gallery, photos: Path, tmp_path: Path) -> None:
    query = photos / "class0" / "0.png"
    results = [gallery.search(query, k=3), gallery.search(query, k=1)]
    draw_hits(tmp_path / "before.png", gallery, results)
    Path(results[0].paths[1]).unlink()
    draw_hits(tmp_path / "after.png", gallery, results)
    assert share_of(GONE, tmp_path / "before.png") < 0.001
    assert share_of(GONE, tmp_path / "after.png") > 0.02


def test_a_name_that_is_no_picture_is_refused(gallery: Gallery, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no picture's name; end it with one of"):
        draw_hits(tmp_path / "found.txt", gallery, [])
