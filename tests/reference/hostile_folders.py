"""Galleries, models and runs as an attacker would send them.

Each function damages a valid folder. It also takes a file of the victim outside that folder, which no command may
change, delete or show. All functions are deterministic:

    shutil.copytree(good, copy)
    GALLERIES["super-journal"](copy, victim)
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

Spoil = Callable[[Path, Path], None]
JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
DEEP = "[" * 100_000


@contextmanager
def at_once() -> Iterator[None]:
    """Fails if the code blocks, as on a FIFO."""

    def too_long(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(5)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def journal(
    folder: Path, victim: Path, head: bytes = JOURNAL_MAGIC, names_victim: bool = True, page: int = 4096
) -> None:
    """A rollback journal that undoes nothing, but names a super-journal for SQLite to delete."""
    items = folder / "items.sqlite"
    size = items.stat().st_size // 4096
    begin = (head + struct.pack(">5I", 0, 1, size, 512, page)).ljust(512, b"\0")
    name = str(victim).encode()
    end = struct.pack(">I", 0x40000000 // page + 1) + name + struct.pack(">2I", len(name), sum(name)) + JOURNAL_MAGIC
    (folder / "items.sqlite-journal").write_bytes(begin + (end if names_victim else b""))


def fifo(name: str, folder: Path, _: Path) -> None:
    _remove(folder / name)
    os.mkfifo(folder / name)


def link(name: str, folder: Path, victim: Path) -> None:
    _remove(folder / name)
    (folder / name).symlink_to(victim)


def link_to_a_copy(name: str, folder: Path, victim: Path) -> None:
    """The target of the link is valid; the error is to follow it."""
    moved = victim.with_name(f"copy-of-{Path(name).name}")
    (folder / name).rename(moved)
    (folder / name).symlink_to(moved)


def device(name: str, folder: Path, _: Path) -> None:
    link(name, folder, Path("/dev/zero"))


def text(name: str, content: str, folder: Path, _: Path) -> None:
    (folder / name).write_text(content, encoding="utf-8")


def binary(name: str, content: bytes, folder: Path, _: Path) -> None:
    (folder / name).write_bytes(content)


def sql(commands: str, folder: Path, victim: Path) -> None:
    """Changes items.sqlite; ``{victim}`` in the commands is the victim's file."""
    with _items(folder) as db:
        db.executescript("PRAGMA ignore_check_constraints = ON; PRAGMA writable_schema = ON;")
        db.executescript(commands.replace("{victim}", str(victim)))


def in_folder(name: str, spoil: Spoil, folder: Path, victim: Path) -> None:
    spoil(folder / name, victim)


def patch(name: str, offset: int, content: bytes, folder: Path, _: Path) -> None:
    with (folder / name).open("r+b") as file:
        file.seek(offset)
        file.write(content)


def values(name: str, changes: dict[str, Any], folder: Path, victim: Path) -> None:
    """Changes values in a JSON file; a key ``a.b`` is ``b`` in ``a``."""
    whole = json.loads((folder / name).read_text(encoding="utf-8"))
    for key, value in changes.items():
        *above, last = key.split(".")
        inner = whole
        for each in above:
            inner = inner[each]
        inner[last] = value.replace("{victim}", str(victim)) if isinstance(value, str) else value
    (folder / name).write_text(json.dumps(whole), encoding="utf-8")


def forged_record(folder: Path, victim: Path) -> None:
    """Items that name the victim's file, and a record that claims its folder was indexed."""
    sql("UPDATE items SET path = '{victim}' WHERE id = 1", folder, victim)
    record = {"folders": [str(victim.parent), "/"], "seal": "0" * 64}
    (folder / "folders.json").write_text(json.dumps(record), encoding="utf-8")


def picture_link(folder: Path, victim: Path) -> None:
    """An item in the gallery's own folder that is a link to the victim's file."""
    (folder / "own.png").symlink_to(victim)
    sql(f"UPDATE items SET path = '{folder / 'own.png'}' WHERE id = 1", folder, victim)


def entangled_pages(folder: Path, _: Path) -> None:
    """A tree whose inner nodes all lead to the same pages: walking through it takes practically forever."""
    with _items(folder) as db:
        roots = [root for (root,) in db.execute("SELECT rootpage FROM sqlite_master WHERE name LIKE 'items%'")]
        size, kinds = db.execute("PRAGMA page_size").fetchone()[0], {}
        for name, root in db.execute("SELECT name, rootpage FROM sqlite_master"):
            kinds[root] = name == "items"
    content = bytearray((folder / "items.sqlite").read_bytes())
    for root in roots:
        leaf = bytes(content[(root - 1) * size : root * size])
        first = len(content) // size + 1
        content += leaf
        for level in range(12):
            content += _inner_page(size, first + level, table=kinds[root])
        content[(root - 1) * size : root * size] = _inner_page(size, len(content) // size, table=kinds[root])
    content[28:32] = struct.pack(">I", len(content) // size)
    (folder / "items.sqlite").write_bytes(content)


def _inner_page(size: int, child: int, table: bool) -> bytes:
    cells = 300
    cell = struct.pack(">I", child) + (b"\1" if table else b"\3\2\1\1")  # in an index: a payload of two integers
    start = size - cells * len(cell)
    head = struct.pack(">BHHHBI", 5 if table else 2, 0, cells, start, 0, child)
    places = b"".join(struct.pack(">H", start + place * len(cell)) for place in range(cells))
    return (head + places).ljust(start, b"\0") + cell * cells


GALLERIES: dict[str, Spoil] = {
    "super-journal": journal,
    "a journal that sleeps": partial(journal, head=bytes(8)),
    "hot journal": partial(journal, names_victim=False),
    "journal of another page size": partial(journal, names_victim=False, page=65536),
    "journal is a fifo": partial(fifo, "items.sqlite-journal"),
    "journal is a link": partial(link, "items.sqlite-journal"),
    "write-ahead log": partial(binary, "items.sqlite-wal", bytes.fromhex("377f0682002de218") + bytes(100)),
    "mode of write-ahead logs": partial(patch, "items.sqlite", 18, b"\2\2"),
    "items are a link": partial(link, "items.sqlite"),
    "items are a link to a copy": partial(link_to_a_copy, "items.sqlite"),
    "items are empty": partial(binary, "items.sqlite", b""),
    "items are a fifo": partial(fifo, "items.sqlite"),
    "items are a device": partial(device, "items.sqlite"),
    "another program's": partial(sql, "PRAGMA application_id = 252006673"),
    "another version": partial(sql, "PRAGMA user_version = 7"),
    "version 0": partial(sql, "PRAGMA user_version = 0"),
    "a view": partial(sql, "ALTER TABLE items RENAME TO hidden; CREATE VIEW items AS SELECT * FROM hidden;"),
    "a trigger": partial(sql, "CREATE TRIGGER t AFTER INSERT ON items BEGIN DELETE FROM items; END;"),
    "another table": partial(sql, "CREATE TABLE more (x)"),
    "an index on an expression": partial(sql, "CREATE INDEX i ON items (abs(size))"),
    "other columns": partial(
        sql,
        "CREATE TABLE t AS SELECT * FROM items; DROP TABLE items; ALTER TABLE t RENAME TO items;",
    ),
    "a path of bytes": partial(sql, "UPDATE items SET path = x'ff00' WHERE id = 1"),
    "a path with NUL": partial(sql, "UPDATE items SET path = 'a' || char(0) || 'b' WHERE id = 1"),
    "a path that is not UTF-8": partial(sql, "UPDATE items SET path = CAST(x'2fff' AS TEXT) WHERE id = 1"),
    "a label of bytes": partial(sql, "UPDATE items SET label = x'00' WHERE id = 1"),
    "a size of text": partial(sql, "UPDATE items SET size = 'large' WHERE id = 1"),
    "a vector of text": partial(sql, "UPDATE items SET vector = 'vector' WHERE id = 1"),
    "a short vector": partial(sql, "UPDATE items SET vector = x'00' WHERE id = 1"),
    "a vector of NaN": partial(
        sql, "UPDATE items SET vector = CAST(replace(hex(zeroblob(length(vector))), '00', x'ff') AS BLOB)"
    ),
    "a path of 4 MB": partial(sql, "UPDATE items SET path = hex(zeroblob(2000000)) WHERE id = 1"),
    "no sequence": partial(sql, "DELETE FROM sqlite_sequence"),
    "entangled pages": entangled_pages,
    "a path of the victim": partial(sql, "UPDATE items SET path = '{victim}' WHERE id = 1"),
    "a path with detours": partial(sql, "UPDATE items SET path = '/tmp/..{victim}' WHERE id = 1"),
    "a forged record": forged_record,
    "a picture that is a link": picture_link,
    "Milvus at a host": partial(values, "gallery.json", {"store": "milvus://127.0.0.1:9/things"}),
    "Milvus in a file": partial(values, "gallery.json", {"store": "milvus://./items.db"}),
    "Milvus elsewhere": partial(values, "gallery.json", {"store": "milvus://{victim}.db"}),
    "a store of escapes": partial(values, "gallery.json", {"store": "\x1b[2Jmilvus://host/things"}),
    "a description that is a list": partial(text, "gallery.json", "[]"),
    "a deep description": partial(text, "gallery.json", DEEP),
    "a long description": partial(text, "gallery.json", " " * (17 * 2**20)),
    "an infinite dimension": partial(text, "gallery.json", '{"format": 1, "dim": 1e999, "model": "", "store": ""}'),
    "an infinite format": partial(values, "gallery.json", {"format": float("inf")}),
    "a format of text": partial(values, "gallery.json", {"format": "1"}),
    "a description that is a fifo": partial(fifo, "gallery.json"),
    "a description that is a link": partial(link_to_a_copy, "gallery.json"),
    "a model that is a link": partial(link_to_a_copy, "model"),
    "weights that are a link": partial(link_to_a_copy, "model/model.safetensors"),
    "weights that are a fifo": partial(fifo, "model/model.safetensors"),
    "a calibration that is a fifo": partial(fifo, "calibration.json"),
    "a calibration that is a device": partial(device, "calibration.json"),
    "a lock that is a fifo": partial(fifo, "gallery.lock"),
    "a lock that is a link": partial(link, "gallery.lock"),
    "a record that is a fifo": partial(fifo, "folders.json"),
}


def _header(tensors: dict[str, Any], data: int = 0) -> bytes:
    head = json.dumps(tensors).encode()
    return struct.pack("<Q", len(head)) + head + bytes(data)


def not_finite(folder: Path, _: Path) -> None:
    """Weights of the right shape, all NaN."""
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    start = 8 + struct.unpack("<Q", content[:8])[0]
    content[start:] = np.full((len(content) - start) // 4, np.nan, np.float32).tobytes()
    file.write_bytes(content)


def sparse(folder: Path, _: Path) -> None:
    """A sparse file of a terabyte, which takes no space on the disk."""
    size = 2**40
    head = json.dumps({"x": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        file.truncate(8 + len(head) + size)


WEIGHTS = "model.safetensors"
MODELS: dict[str, Spoil] = {
    "weights are a link": partial(link, WEIGHTS),
    "weights are a link to a copy": partial(link_to_a_copy, WEIGHTS),
    "weights are a fifo": partial(fifo, WEIGHTS),
    "weights are a device": partial(device, WEIGHTS),
    "weights are empty": partial(binary, WEIGHTS, b""),
    "weights of noise": partial(binary, WEIGHTS, bytes(range(256)) * 16),
    "a pickle": partial(binary, WEIGHTS, b"cos\nsystem\n(S'touch /tmp/executed'\ntR."),
    "a header of 2^60 bytes": partial(binary, WEIGHTS, struct.pack("<Q", 2**60) + b"{}"),
    "a header that is no JSON": partial(binary, WEIGHTS, struct.pack("<Q", 4) + b"{{{{"),
    "a deep header": partial(binary, WEIGHTS, struct.pack("<Q", len(DEEP)) + DEEP.encode()),
    "a header without tensors": partial(binary, WEIGHTS, _header({})),
    "a huge shape": partial(
        binary, WEIGHTS, _header({"x": {"dtype": "F32", "shape": [2**62, 8], "data_offsets": [0, 0]}})
    ),
    "a negative shape": partial(
        binary, WEIGHTS, _header({"x": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, 4)
    ),
    "an unknown dtype": partial(
        binary, WEIGHTS, _header({"x": {"dtype": "OBJECT", "shape": [1], "data_offsets": [0, 8]}}, 8)
    ),
    "offsets beyond the end": partial(
        binary, WEIGHTS, _header({"x": {"dtype": "U8", "shape": [9], "data_offsets": [0, 9]}}, 4)
    ),
    "weights of a terabyte": sparse,
    "weights that are NaN": not_finite,
    "a description that is a link": partial(link_to_a_copy, "model.json"),
    "a description that is a fifo": partial(fifo, "model.json"),
    "a description that is a device": partial(device, "model.json"),
    "a description that is a list": partial(text, "model.json", "[]"),
    "a description of null": partial(text, "model.json", "null"),
    "a deep description": partial(text, "model.json", DEEP),
    "a long description": partial(text, "model.json", " " * (17 * 2**20)),
    "an infinite format": partial(values, "model.json", {"format": float("inf")}),
    "a format of text": partial(values, "model.json", {"format": "newest"}),
    "a specification that is a list": partial(values, "model.json", {"spec": []}),
    "a backbone from elsewhere": partial(values, "model.json", {"spec.backbone": "hf-hub:someone/model"}),
    "a backbone that is a path": partial(values, "model.json", {"spec.backbone": "{victim}"}),
    "a backbone in a folder": partial(values, "model.json", {"spec.backbone": "local-dir:/tmp"}),
    "a backbone of bytes": partial(values, "model.json", {"spec.backbone": "a\0b"}),
    "a backbone that is a number": partial(values, "model.json", {"spec.backbone": 5}),
    "a huge dimension": partial(values, "model.json", {"spec.dim": 2**60}),
    "a negative dimension": partial(values, "model.json", {"spec.dim": -4}),
    "an infinite dimension": partial(values, "model.json", {"spec.dim": float("inf")}),
    "many slices": partial(values, "model.json", {"spec.slices": 10**9}),
    "no slices": partial(values, "model.json", {"spec.slices": 0}),
    "another head": partial(values, "model.json", {"spec.head": {"a": 1}}),
    "an unknown field": partial(values, "model.json", {"spec.execute": "os.system"}),
}

RUNS: dict[str, Spoil] = {
    **{
        f"{name} is a {kind.__name__}": partial(kind, name)
        for name in ("config.toml", "scores.json", "metrics.jsonl", "data.sha256", "checkpoints/last.pt")
        for kind in (fifo, device)
    },
    "scores that are a list": partial(text, "scores.json", "[1]"),
    "deep scores": partial(text, "scores.json", DEEP),
    "scores that are a link": partial(link, "scores.json"),
    "a checkpoint that is a pickle": partial(
        binary, "checkpoints/last.pt", b"cos\nsystem\n(S'touch /tmp/executed'\ntR."
    ),
    "a checkpoint that is a link": partial(link, "checkpoints/last.pt"),
    "no checkpoint": partial(binary, "checkpoints/last.pt", b""),
    "a deep configuration": partial(text, "config.toml", f"x = {'[' * 10_000}"),
    "a configuration of noise": partial(binary, "config.toml", b"\xff\0\xff"),
    "a configuration of numbers": partial(text, "config.toml", "data = 1\nmodel = 2\n"),
    "an infinite configuration": partial(text, "config.toml", "[training]\nepochs = inf\n"),
    "data that are a device": partial(text, "config.toml", '[data]\nsource = "/dev/zero"\n[method]\nname = "rank"\n'),
    **{f"model: {name}": partial(in_folder, "model", each) for name, each in MODELS.items()},
}


@contextmanager
def _items(folder: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(folder / "items.sqlite")) as db, db:
        yield db


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
