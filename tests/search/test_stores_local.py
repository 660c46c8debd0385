"""The local store with several processes, damaged files and read-only folders."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import signal
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from nearkin.errors import ResourceError, UserError
from nearkin.search import Entry, local
from nearkin.search.local import LocalStore

# Forked, because a new process would import torch again; each opens its own store.
processes = multiprocessing.get_context("fork")


def entries(*names: str) -> list[Entry]:
    return [Entry(f"/{name}", "", 1, 1) for name in names]


def names(store: LocalStore) -> list[str]:
    return [entry.path[1:] for entry in store.entries().values()]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    opened = LocalStore(tmp_path, 2)
    yield opened
    opened.close()


def test_a_second_writer_waits_and_a_reader_sees_committed_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "TIMEOUT", 0.1)
    store = LocalStore(tmp_path, 2)
    written, end = processes.Event(), processes.Event()

    def write_and_wait() -> None:
        theirs = LocalStore(tmp_path, 2)
        theirs.put(entries("theirs"), np.ones((1, 2), np.float32))
        with theirs._writing():
            written.set()
            end.wait(30)
        theirs.close()

    other = processes.Process(target=write_and_wait)
    other.start()
    assert written.wait(30)
    assert names(store) == ["theirs"]
    assert store.search(np.zeros((1, 2), np.float32), 1)[0][0].distance == pytest.approx(2**0.5)
    for write in (lambda: store.put(entries("ours"), np.zeros((1, 2), np.float32)), lambda: store.remove([1])):
        with pytest.raises(UserError, match=r"another process is writing to .*; wait for it to end"):
            write()
    end.set()
    other.join()
    store.put(entries("ours"), np.zeros((1, 2), np.float32))
    assert [hit.entry.path for hit in store.search(np.zeros((1, 2), np.float32), 2)[0]] == ["/ours", "/theirs"]
    store.close()


def test_a_killed_writer_loses_nothing(tmp_path: Path) -> None:
    before = LocalStore(tmp_path, 2)
    before.put(entries("a", "b"), np.eye(2, dtype=np.float32))
    before.close()

    def write_and_die() -> None:
        store = LocalStore(tmp_path, 2)
        db = store._connect("rw")
        db.execute("PRAGMA cache_spill = 1")  # pages reach the file before the commit
        db.execute("PRAGMA cache_size = 1")
        db.execute("BEGIN IMMEDIATE")
        db.execute("UPDATE items SET path = path || '?'")
        more = ((f"/{n}", bytes(8)) for n in range(5000))
        db.executemany("INSERT INTO items (path, label, size, modified, vector) VALUES (?, '', 1, 1, ?)", more)
        os.kill(os.getpid(), signal.SIGKILL)

    killed = processes.Process(target=write_and_die)
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    assert (tmp_path / "items.sqlite-journal").stat().st_size > 0
    with pytest.raises(UserError, match=r"the last change to .* was interrupted .*; index into it again"):
        LocalStore(tmp_path, 2, "read")
    store = LocalStore(tmp_path, 2, "write")
    assert names(store) == ["a", "b"]
    assert np.array_equal(store.vectors([1, 2]), np.eye(2))
    store.put(entries("c"), np.ones((1, 2), np.float32))
    store.close()


def test_a_failed_put_changes_nothing(store: LocalStore) -> None:
    store.put(entries("a"), np.zeros((1, 2), np.float32))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, hard))  # acts like a full disk
    try:
        with pytest.raises(UserError, match=r"cannot read or write|could not write"):
            store.put(entries("a", *map(str, range(5000))), np.ones((5001, 2), np.float32))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert names(store) == ["a"]
    assert store.search(np.zeros((1, 2), np.float32), 5)[0][0].distance == 0
    store.put(entries("b"), np.ones((1, 2), np.float32))
    assert names(store) == ["a", "b"]


def test_a_full_disk_is_one_sentence(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_little_room(mode: str) -> sqlite3.Connection:
        db = LocalStore._connect(store, mode)
        db.execute("PRAGMA max_page_count = 10")
        return db

    monkeypatch.setattr(store, "_connect", with_little_room)
    with pytest.raises(
        ResourceError, match=r"items\.sqlite: no space left on device; files that were saved earlier are intact"
    ):
        store.put(entries(*map(str, range(5000))), np.ones((5000, 2), np.float32))
    assert len(store) == 0


@pytest.mark.parametrize("content", [b"no database at all" * 100, "half"])
def test_a_damaged_file_is_one_sentence(tmp_path: Path, content: bytes | str) -> None:
    store = LocalStore(tmp_path, 2)
    store.put(entries(*map(str, range(5000))), np.ones((5000, 2), np.float32))
    store.close()
    file = tmp_path / "items.sqlite"
    whole = file.read_bytes()
    file.write_bytes(content if isinstance(content, bytes) else whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"items\.sqlite is damaged"):
        LocalStore(tmp_path, 2).entries()


def test_a_read_only_gallery_can_be_searched() -> None:
    folder = Path(tempfile.mkdtemp())  # not in tmp_path, which other users cannot read
    said = processes.SimpleQueue()

    def read_and_try_to_write() -> None:
        if os.getuid() == 0:  # root may write everywhere
            os.setuid(65534)
        store = LocalStore(folder, 2)
        said.put(store.search(np.ones((1, 2), np.float32), 3)[0][0].entry.path)
        try:
            store.remove([1])
        except UserError as error:
            said.put(str(error))

    try:
        store = LocalStore(folder, 2)
        store.put(entries("a"), np.ones((1, 2), np.float32))
        store.close()
        for file in folder.iterdir():
            file.chmod(0o444)
        folder.chmod(0o555)
        reader = processes.Process(target=read_and_try_to_write)
        reader.start()
        reader.join()
        assert reader.exitcode == 0
        assert said.get() == "/a"
        assert "readonly database; choose another folder or fix its permissions" in said.get()
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_ties_are_sorted_by_id(store: LocalStore) -> None:
    store.put(entries(*map(str, range(300))), np.ones((300, 2), np.float32))
    assert [hit.id for hit in store.search(np.zeros((1, 2), np.float32), 3)[0]] == [1, 2, 3]
