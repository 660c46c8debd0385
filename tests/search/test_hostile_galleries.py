"""A hostile gallery can do no harm: it changes no file, shows none, opens no connection and never hangs."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from reference.hostile_folders import GALLERIES, at_once
from reference.untrained import save_untrained

from nearkin.errors import UserError
from nearkin.search.gallery import Gallery

# These can be searched: their content is harmless, or is only not shown.
SEARCHED = {
    "a journal that sleeps",
    "a path of the victim",
    "a path with detours",
    "a forged record",
    "a picture that is a link",
    "a calibration that is a fifo",
    "a calibration that is a device",
    "a lock that is a fifo",
    "a lock that is a link",
    "a record that is a fifo",
    "no sequence",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, four photos, and a gallery of them."""
    folder = tmp_path_factory.mktemp("made")
    for number, colour in enumerate(["red", "darkred", "blue", "navy"]):
        (folder / "photos" / colour[-3:]).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (24, 24), colour).save(folder / "photos" / colour[-3:] / f"{number}.png")
    save_untrained(folder / "model")
    Gallery.index(folder / "model", folder / "photos", folder / "g.index").close()
    return folder


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    (tmp_path / "private").mkdir()
    Image.new("RGB", (24, 24), "green").save(tmp_path / "private" / "victim.png")
    return tmp_path / "private" / "victim.png"


def state(folder: Path) -> dict[str, str]:
    """Everything below a folder, as it is on disk."""
    return {
        str(path): str(path.readlink()) if path.is_symlink() else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


@pytest.mark.parametrize("name", GALLERIES)
def test_a_hostile_gallery_is_searched_or_refused_without_side_effects(
    name: str, made: Path, victim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_connection(*_: object, **__: object) -> None:
        raise AssertionError("it connects")

    monkeypatch.setattr(socket.socket, "connect", no_connection)
    shutil.copytree(made / "g.index", tmp_path / "g.index")
    GALLERIES[name](tmp_path / "g.index", victim)
    before = state(tmp_path)
    query = np.zeros(4, np.float32)
    with at_once():
        if name in SEARCHED:
            with Gallery.open(tmp_path / "g.index") as gallery:
                found = gallery.search(query, k=4)
                shown = [path for path in found.paths if path in gallery.shown]  # type: ignore[union-attr]
                assert str(victim) not in map(os.path.realpath, shown)
        else:
            with pytest.raises(UserError) as refused, Gallery.open(tmp_path / "g.index") as gallery:
                gallery.search(query, k=4)
            assert str(refused.value).isprintable()
        assert state(tmp_path) == before
    with at_once():  # writing is refused, or changes only the gallery
        try:
            Gallery.index(made / "model", made / "photos", tmp_path / "g.index").close()
        except UserError as error:
            assert str(error).isprintable()
        after = {path: each for path, each in state(tmp_path).items() if "g.index" not in path}
        assert after == {path: each for path, each in before.items() if "g.index" not in path}


def test_sqlite_itself_deletes_the_file_that_a_journal_names(made: Path, victim: Path, tmp_path: Path) -> None:
    """The attack is real: opening the items with SQLite's defaults deletes the victim's file."""
    shutil.copytree(made / "g.index", tmp_path / "g.index")
    GALLERIES["super-journal"](tmp_path / "g.index", victim)
    with closing(sqlite3.connect(tmp_path / "g.index" / "items.sqlite")) as db:
        db.execute("SELECT COUNT(*) FROM items").fetchone()
    assert not victim.exists()


def test_files_that_the_user_indexed_or_allows_are_shown(made: Path, victim: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "g.index", tmp_path / "g.index")
    GALLERIES["a path of the victim"](tmp_path / "g.index", victim)
    with Gallery.open(tmp_path / "g.index") as gallery:
        paths = [entry.path for entry in gallery.store.entries().values()]
        assert [path in gallery.shown for path in paths] == [path != str(victim) for path in paths]
    for allowed in (victim, victim.parent, [str(victim.parent)]):
        with Gallery.open(tmp_path / "g.index", allow_path=allowed) as gallery:
            assert all(path in gallery.shown for path in paths)


def test_a_gallery_that_another_user_indexed_shows_only_its_own_folder(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NEARKIN_CACHE", str(tmp_path / "another user"))
    with Gallery.open(made / "g.index") as gallery:
        paths = [entry.path for entry in gallery.store.entries().values()]
        assert not any(path in gallery.shown for path in paths)
        assert str(made / "g.index" / "a.png") in gallery.shown
    assert [f'allow_path="{made}' in record.getMessage() for record in caplog.records] == [True]
    shutil.copytree(made / "g.index", tmp_path / "g.index")
    Gallery.index(made / "model", made / "photos", tmp_path / "g.index").close()  # nothing is embedded again
    with Gallery.open(tmp_path / "g.index") as gallery:
        assert all(path in gallery.shown for path in paths)
    assert (tmp_path / "another user" / "gallery.key").stat().st_mode & 0o777 == 0o600
