"""Damaged galleries: the description, the model, the database and the index."""

from __future__ import annotations

import shutil
import sqlite3
import struct
from contextlib import closing, suppress
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt
from benchmarks.campaign.mutate import ESCAPE, MARKUP, damaged
from benchmarks.campaign.runs import damage
from benchmarks.campaign.worker import Action, Failure, Sandbox

FILES = ("gallery.json", "calibration.json", "model/model.json", "model/model.safetensors", "gallery.lock")
STATEMENTS = (
    "PRAGMA user_version = {number}", "PRAGMA application_id = {number}", "PRAGMA journal_mode = WAL",
    "ALTER TABLE items RENAME TO hidden; CREATE VIEW items AS SELECT * FROM hidden",
    "CREATE TRIGGER evil AFTER DELETE ON items BEGIN UPDATE items SET label = 'evil'; END",
    "CREATE TRIGGER evil BEFORE INSERT ON items BEGIN DELETE FROM items; END",
    "DROP TABLE items", "DROP TABLE items; CREATE TABLE items (id, path, label, size, modified, vector)",
    "ALTER TABLE items DROP COLUMN size", "ALTER TABLE items ADD COLUMN more TEXT", "DELETE FROM items",
    "DROP INDEX items_by_label", "CREATE TABLE more (a)", "UPDATE sqlite_sequence SET seq = {number}",
    "UPDATE items SET {column} = {value} WHERE id = 1", "UPDATE items SET {column} = {value}",
    "PRAGMA ignore_check_constraints = ON; UPDATE items SET {column} = {value} WHERE id <= 3",
    "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = {value}",
    "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET rootpage = {number}",
    "CREATE VIRTUAL TABLE more USING fts5(a)",
)  # fmt: skip
VALUES = (
    "NULL", "-1", "9e999", "9223372036854775807", "'text'", "x'00'", "zeroblob(32)", "randomblob(32)", "''",
    "zeroblob(1000000)", "'/dev/zero'", "'../../home/thesis.txt'", "'/etc/passwd'", f"'{MARKUP}'", "'nul' || char(0)",
    "x'ff' || x'fe'", "cast(x'fffefd' AS TEXT)", f"'{ESCAPE}'", "x'0000c07f' || zeroblob(28)", "id", "vector", "1.5",
)  # fmt: skip


def case(rng: Random, sandbox: Sandbox) -> Action:
    """A damaged gallery: search, match, change or serve it."""
    query = sandbox.specimens / "photos" / "class0" / "1.png"
    way = rng.randrange(8)
    writes = way in (3, 4, 5)
    gallery = (sandbox.out if writes else sandbox.input) / "gallery"
    shutil.copytree(sandbox.specimens / "gallery", gallery)
    approximate = _damage(gallery, rng, sandbox)
    commands: dict[int, tuple[str | Path, ...]] = {
        0: ("search", gallery, query),
        1: ("search", gallery, query, "--json", "--label", "class1"),
        2: ("search", gallery, query, "-k", "100", "--figure", sandbox.out / "found.png"),
        3: ("match", gallery, query),
        4: ("remove", gallery, query),
        5: ("index", sandbox.specimens / "run", sandbox.specimens / "photos", "-o", gallery, "--prune"),
    }
    if way in commands:
        return lambda: with_index(approximate, lambda: sandbox.nearkin(*commands[way]))
    return lambda: with_index(approximate, lambda: browse(gallery))


def _damage(gallery: Path, rng: Random, sandbox: Sandbox) -> bool:
    """Damages the gallery; returns whether to search it with the approximate index."""
    way = rng.random()
    database = gallery / "items.sqlite"
    if way < 0.3:
        damage(gallery / rng.choice(FILES), rng, sandbox.home)
    elif way < 0.6:
        _damage_tables(database, rng)
    elif way < 0.75:
        content = database.read_bytes()
        database.write_bytes(damaged(content, rng, first=rng.choice((100, 200, None))))
    elif way < 0.8:
        damage(database, rng, sandbox.home)
    elif way < 0.88:
        _ship_journal(database, rng, sandbox)
    else:
        _damage_index(gallery, rng)
        return True
    return False


def _damage_tables(database: Path, rng: Random) -> None:
    """Damages the database with SQL."""
    with closing(sqlite3.connect(database)) as connection:
        for _ in range(rng.choice((1, 1, 2))):
            statement = rng.choice(STATEMENTS).format(
                number=rng.choice((0, 1, -1, 7, 8, 9, 2**31 - 1, 2**62)),
                column=rng.choice(("id", "path", "label", "size", "modified", "vector")),
                value=rng.choice(VALUES),
            )
            with suppress(sqlite3.Error):  # not every value fits every column
                connection.executescript(statement)
        with suppress(sqlite3.Error):
            connection.commit()


def _ship_journal(database: Path, rng: Random, sandbox: Sandbox) -> None:
    """Adds a journal that SQLite would roll back, with a file of the user as its super-journal."""
    page = database.read_bytes()[:4096]
    header = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + struct.pack(">5I", 1, 0, 5, 512, 4096)
    record = struct.pack(">I", 1) + page
    content = header.ljust(512, b"\0") + record + struct.pack(">I", sum(page[200::-200]) % 2**32)
    target = str(rng.choice((sandbox.home / "thesis.txt", sandbox.folder / "case" / "beside.txt"))).encode()
    tail = struct.pack(">I", 0x40000000 // 4096 + 1) + target + struct.pack(">2I", len(target), sum(target))
    content += tail + b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
    if rng.random() < 0.3:
        content = damaged(content, rng)
    name = rng.choice(("items.sqlite-journal", "items.sqlite-journal", "items.sqlite-wal", "items.sqlite-shm"))
    (database.parent / name).write_bytes(content)


def _damage_index(gallery: Path, rng: Random) -> None:
    """Damages the approximate index, and sometimes its measured recall."""
    file = add_index(gallery, up_to=rng.choice((10**6, 0)))
    file.write_bytes(damaged(file.read_bytes(), rng, first=rng.choice((200, None))))
    if rng.random() < 0.3:
        (gallery / "approximate.json").write_text(rng.choice(("{}", "[]", "1e999", '{"of": [1], "said": null}', "")))


def add_index(gallery: Path, up_to: int = 10**6) -> Path:
    """Adds a faiss index, as in large galleries: HNSW for up to ``up_to`` items, else IVF."""
    from nearkin.search import vector_index

    ids, vectors = _vectors(gallery)
    default, vector_index.HNSW_UP_TO = vector_index.HNSW_UP_TO, up_to
    try:
        built = vector_index.ApproximateIndex.build(len(ids), vectors, iter([(ids, vectors)]))
    finally:
        vector_index.HNSW_UP_TO = default
    file = gallery / "approximate.faiss"
    built.save(file)
    return file


def _vectors(gallery: Path) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    with closing(sqlite3.connect(gallery / "items.sqlite")) as connection:
        rows = connection.execute("SELECT id, vector FROM items ORDER BY id").fetchall()
    ids = np.array([id for id, _ in rows], np.int64)
    return ids, np.frombuffer(b"".join(vector for _, vector in rows), np.float32).reshape(len(ids), -1)


def with_index(approximate: bool, action: Action) -> None:
    """Runs the action; if ``approximate``, makes nearkin use the approximate index despite the few items."""
    from nearkin.search import vector_index

    default = vector_index.EXACT_UP_TO
    vector_index.EXACT_UP_TO = 0 if approximate else default
    try:
        action()
    finally:
        vector_index.EXACT_UP_TO = default


def browse(gallery: Path) -> None:
    """Sends the requests of the page."""
    from fastapi.testclient import TestClient

    from nearkin.search import Gallery
    from nearkin.serve.app import make_app

    with Gallery.open(gallery) as opened, TestClient(make_app(opened), raise_server_exceptions=False) as client:
        for path in ("health", "items", "labels", "items/1/neighbours", "items/1/thumbnail", "items/2/image", "map"):
            answer = client.get(f"/api/{path}")
            if answer.status_code == 500:
                raise Failure("traceback", f"GET /api/{path} answered 500")
            if str(gallery) in answer.text:
                raise Failure("leak", f"the answer to GET /api/{path} contains a path")
