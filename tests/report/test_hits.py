"""What was found, as tables and as a picture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from reference.untrained import save_untrained

from nearkin.errors import UserError
from nearkin.report.hits import draw_hits, print_hits, print_matches
from nearkin.search.gallery import Gallery
from nearkin.search.indexing import index_data
from nearkin.search.matching import Match
from nearkin.search.store import Entry, Hit

GONE = (0xDD, 0xDD, 0xDD)


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def gallery(photos: Path, tmp_path: Path) -> Iterator[Gallery]:
    index_data(save_untrained(tmp_path / "model"), str(photos), tmp_path / "g$ $.index")
    with Gallery.open(tmp_path / "g$ $.index") as opened:
        yield opened


def hit(label: str, distance: float, path: str = "/photos/1.jpg") -> Hit:
    return Hit(1, Entry(path, label, 0, 0), distance)


def share_of(colour: tuple[int, int, int], file: Path) -> float:
    return float((np.asarray(Image.open(file).convert("RGB")) == colour).all(2).mean())


def test_every_query_has_a_table_of_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    print_hits([Path("a.jpg"), Path("b.jpg")], [[hit("rose", 0.25), hit("tulip", 1.5, "/photos/2.jpg")], []])
    lines = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
    assert rows == [["1", "0.2500", "rose", "/photos/1.jpg"], ["2", "1.5000", "tulip", "/photos/2.jpg"]]
    assert "a.jpg" in lines[0] and any("b.jpg" in line for line in lines)


def test_names_that_look_like_markup_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    print_hits([Path("[red]a.jpg")], [[hit("[/bold]", 0.1, "/[x]/1.jpg")]])
    print_matches([Path("[red]a.jpg")], [Match("[/bold]", 0.1, 1.0, [])])
    out = capsys.readouterr().out
    assert out.count("[red]a.jpg") == 2 and out.count("[/bold]") == 2 and "/[x]/1.jpg" in out


def test_a_match_has_its_label_or_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    print_matches([Path("a.jpg"), Path("b.jpg")], [Match("rose", 0.2, 0.75, []), Match(None, 1.25, 0.4, [])])
    lines = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
    assert rows == [["a.jpg", "rose", "75%", "0.2000"], ["b.jpg", "unknown", "40%", "1.2500"]]


def test_the_picture_shows_the_query_and_what_was_found(gallery: Gallery, photos: Path, tmp_path: Path) -> None:
    green, red = tmp_path / "green.png", photos / "class0" / "red.png"
    Image.new("RGB", (30, 30), (0, 255, 0)).save(green)
    Image.new("RGB", (30, 30), (255, 0, 0)).save(red)
    draw_hits(tmp_path / "found.png", gallery, [green], [[hit("re$d$", 0.5, str(red))]])
    assert share_of((0, 255, 0), tmp_path / "found.png") > 0.02 and share_of((255, 0, 0), tmp_path / "found.png") > 0.02


def test_a_vanished_file_is_a_grey_tile(gallery: Gallery, photos: Path, tmp_path: Path) -> None:
    query = photos / "class0" / "0.png"
    [hits] = gallery.search(gallery.encode([query]), k=3)
    draw_hits(tmp_path / "before.png", gallery, [query, query], [hits, hits[:1]])
    Path(hits[1].entry.path).unlink()
    draw_hits(tmp_path / "after.png", gallery, [query, query], [hits, hits[:1]])
    assert share_of(GONE, tmp_path / "before.png") < 0.001
    assert share_of(GONE, tmp_path / "after.png") > 0.02


def test_a_name_that_is_no_picture_is_refused(gallery: Gallery, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no picture's name; end it with one of"):
        draw_hits(tmp_path / "found.txt", gallery, [], [])
