"""The local store: items and their vectors in a SQLite file in the gallery's folder.

Writes are transactions, one at a time. Any number of processes can read; they see the last committed state. The file
uses a rollback journal. A write-ahead log would need write access to read, and does not work on network drives.

A gallery may come from someone else. It is read through a read-only connection, which never plays back a journal that
came with it. (``immutable`` would be wrong, since another process may be writing.) Every change opens a connection of
its own. `nearkin.search.sqlite_file` describes what both kinds of connection refuse.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import sqlite3
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from nearkin.errors import UserError
from nearkin.files import atomic_path, cannot_write, read_json, write_json
from nearkin.search import vector_index
from nearkin.search.sqlite_file import (
    LARGEST_TEXT,
    check_file,
    check_journal,
    check_pages,
    check_schema,
    damaged,
    journal_of,
    unfinished,
)
from nearkin.search.store import Embeddings, Entry, Hit, Mode, checked_entries, checked_query, in_order, missing_items
from nearkin.search.vector_index import ApproximateIndex, ExactIndex, Ids

log = logging.getLogger("nearkin")

TIMEOUT = 30.0  # seconds to wait for another process that is writing
CHUNK = 20_000  # rows to read at a time
IDS_PER_QUERY = 900  # old versions of SQLite allow 999

# SQLite's user_version holds the dimension, so that it is set in the same step that creates the table.
TABLES = """
CREATE TABLE IF NOT EXISTS items (
    id INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT NOT NULL UNIQUE, label TEXT NOT NULL,
    size INTEGER NOT NULL,
    modified INTEGER NOT NULL, vector BLOB NOT NULL CHECK (length(vector) = 4 * {dim})
);
CREATE INDEX IF NOT EXISTS items_by_label ON items (label);
PRAGMA user_version = {dim};
"""


class LocalStore:
    """A `Store` in the gallery's folder; thread-safe.

    Args:
        folder: the gallery's folder.
        dim: dimension of the vectors.
        mode: see `nearkin.search.store.Mode`.

    >>> from tempfile import mkdtemp
    >>> store = LocalStore(Path(mkdtemp()), dim=2)
    >>> store.put([Entry("/a.jpg", "cat", 10, 0), Entry("/b.jpg", "dog", 10, 0)], np.eye(2, dtype=np.float32))
    >>> [(hit.entry.label, hit.distance) for hit in store.search(np.array([[0.0, 1.0]], np.float32), k=1)[0]]
    [('dog', 0.0)]
    >>> store.close()
    """

    # Shared by all stores of a process: `check_file` closes the file, which releases the locks that other connections
    # of the same process hold on it.
    _lock: ClassVar = threading.RLock()

    def __init__(self, folder: Path, dim: int, mode: Mode = "create") -> None:
        try:
            if mode == "create":
                folder.mkdir(parents=True, exist_ok=True)
            folder = folder.resolve()  # the folder may be a link, but nothing inside it
        except OSError as error:
            raise cannot_write(folder, error) from error
        names = ("items.sqlite", "approximate.faiss", "approximate.json")
        self._path, self._index_path, self._tuned_path = (folder / name for name in names)
        self._dim = dim
        self._exact: tuple[Any, ExactIndex] | None = None  # with the version of the data it was built from
        self._approximate: tuple[Any, ApproximateIndex | None] | None = None
        with self._lock, _user_errors(self._path):
            if not os.path.lexists(self._path):
                if mode != "create":
                    raise missing_items(self._path)
                self._create()
            elif mode != "read" and journal_of(self._path).exists():
                with self._writing():
                    pass  # beginning a transaction undoes the unfinished one of a killed process
            check_file(self._path, self._dim)
            self._db = self._connect("ro")
            try:
                self._db.execute("PRAGMA query_only = ON")
                check_schema(self._db, self._path, TABLES.format(dim=self._dim))
                check_pages(self._db, self._path)
            except BaseException:
                self._db.close()
                raise

    def _create(self) -> None:
        """Creates the file atomically, under a temporary name for which no foreign journal can exist."""
        with atomic_path(self._path) as partial, closing(sqlite3.connect(partial)) as db:
            db.executescript(TABLES.format(dim=self._dim))

    def _connect(self, mode: str) -> sqlite3.Connection:
        address = f"{self._path.as_uri()}?mode={mode}"
        db = sqlite3.connect(address, TIMEOUT, isolation_level=None, check_same_thread=False, uri=True)
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 4 * self._dim + LARGEST_TEXT)
        db.execute("PRAGMA trusted_schema = OFF")
        db.execute("PRAGMA cell_size_check = ON")
        return db

    def __len__(self) -> int:
        with self._lock, _user_errors(self._path):
            return self._value("SELECT COUNT(*) FROM items")

    def entries(self) -> dict[int, Entry]:
        with self._lock, _user_errors(self._path):
            rows = self._db.execute("SELECT id, path, label, size, modified FROM items ORDER BY id")
            return {id: self._entry(*rest) for id, *rest in rows}

    def entries_of(self, ids: Sequence[int]) -> dict[int, Entry]:
        found = self._select("path, label, size, modified", ids)
        return {id: self._entry(*found[id]) for id in ids if id in found}

    def counts(self) -> dict[str, int]:
        with self._lock, _user_errors(self._path):
            found = self._db.execute("SELECT label, COUNT(*) FROM items GROUP BY label ORDER BY label").fetchall()
        if not all(isinstance(label, str) for label, _ in found):
            raise damaged(self._path, "a label is not text")
        return dict(found)

    def ids(self, k: int, label: str | None = None) -> list[int]:
        where, values = ("", ()) if label is None else ("WHERE label = ?", (label,))
        with self._lock, _user_errors(self._path):
            rows = self._db.execute(f"SELECT id FROM items {where} ORDER BY id LIMIT ?", (*values, max(k, 0)))
            return [id for (id,) in rows]

    def put(self, entries: Sequence[Entry], vectors: Embeddings) -> None:
        rows = checked_entries(entries, vectors, self._dim).values()
        values = ((e.path, e.label, int(e.size), int(e.modified), vector.tobytes()) for e, vector in rows)
        with self._writing() as db:
            # REPLACE deletes the old row and assigns a new id, so the vector of an id never changes.
            db.executemany(
                "INSERT OR REPLACE INTO items (path, label, size, modified, vector) VALUES (?, ?, ?, ?, ?)", values
            )

    def remove(self, ids: Collection[int]) -> None:
        with self._writing() as db:
            db.executemany("DELETE FROM items WHERE id = ?", ((int(id),) for id in ids))

    def vectors(self, ids: Sequence[int]) -> Embeddings:
        found = self._select("vector", ids)
        rows = self._matrix([vector for (vector,) in found.values()])
        return in_order(dict(zip(found, rows, strict=True)), ids, self._dim)

    def search(self, queries: Embeddings, k: int, label: str | None = None) -> list[list[Hit]]:
        queries = checked_query(queries, self._dim, k)
        if label is not None:
            return self._hits(*ExactIndex(*self._rows("WHERE label = ?", label)).nearest(queries, k))
        index = self._approximate_index()
        found = None if index is None else self._search_approximately(index, queries, k)
        return found or self._hits(*self._exact_index(0).nearest(queries, k))

    def finish(self) -> str:
        items, up_to = len(self), vector_index.EXACT_UP_TO
        if items <= up_to:
            return f"{items:,} items are searched exactly, which is fast up to {up_to:,}."
        if not vector_index.available():
            return f"{items:,} items are searched exactly; to make it faster: pip install 'nearkin[search]'."
        index = self._approximate_index() if self._index_path.exists() else None
        if index is not None and (description := self._saved_description(index)):
            return description
        effort = None if index is None else index.effort
        if index is None or self._changed_since(index) * 10 > items:
            sample = self.vectors(self._sample(vector_index.sample_size(items)))
            index, effort = ApproximateIndex.build(items, sample, self._chunks()), None
            self._approximate = vector_index.signature(self._index_path), index
        queries = self.vectors(self._sample(vector_index.TUNE_QUERIES))
        recall, speedup = index.tune(self._distances, queries, self._chunks())
        if index.effort != effort:
            index.save(self._index_path)
            self._approximate = vector_index.signature(self._index_path), index
        description = (
            f"{items:,} items are searched with {index}: it finds {recall:.1%} of the {vector_index.TUNE_K} nearest, "
            f"{speedup:.1f} times as fast as exact search."
        )
        write_json(self._tuned_path, {"state": self._state(index), "description": description})
        return description

    def close(self) -> None:
        with self._lock:
            self._db.close()
            self._exact = self._approximate = None

    def _distances(self, queries: Embeddings, k: int) -> list[list[float]]:
        return [[hit.distance for hit in hits] for hits in self.search(queries, k)]

    def _search_approximately(self, index: ApproximateIndex, queries: Embeddings, k: int) -> list[list[Hit]] | None:
        """None if an exact search is better: for a large k, or if many items were removed since the index was built."""
        count = 2 * k + 10
        while 4 * count <= len(index):
            squared, proposed = index.candidates(queries, count)
            items = self._items(proposed.ravel().tolist())
            live = np.isin(proposed, list(items))
            if (live.sum(1) >= k).all():
                break
            count *= 4
        else:
            return None
        new_distances, new_ids = self._exact_index(index.highest).nearest(queries, k)
        found = []
        for place, query in enumerate(queries):
            ids = proposed[place, live[place]]
            vectors = np.stack([items[id][1] for id in ids.tolist()])
            distances = np.linalg.norm(vectors.astype(np.float64) - query, axis=1)
            if not np.allclose(squared[place, live[place]], distances**2, rtol=1e-3, atol=1e-4 * distances.max() ** 2):
                log.warning("%s does not match the gallery's items; searching exactly; delete it", self._index_path)
                self._approximate = vector_index.signature(self._index_path), None
                return None
            distances, ids = np.append(distances, new_distances[place]), np.append(ids, new_ids[place])
            nearest = np.lexsort((ids, distances))[:k]
            found.append((distances[nearest], ids[nearest]))
        return self._hits(*zip(*found, strict=True))

    def _hits(self, distances: Iterable[Embeddings], ids: Iterable[Ids]) -> list[list[Hit]]:
        """Hits from distances and ids (queries, k), without items that another process has removed meanwhile."""
        items = self._items([id for row in ids for id in row.tolist()])
        return [
            [
                Hit(id, items[id][0], distance)
                for distance, id in zip(near.tolist(), row.tolist(), strict=True)
                if id in items
            ]
            for near, row in zip(distances, ids, strict=True)
        ]

    def _items(self, ids: Sequence[int]) -> dict[int, tuple[Entry, Embeddings]]:
        """Entries and vectors by id; unknown ids are left out."""
        found = self._select("path, label, size, modified, vector", ids)
        vectors = self._matrix([values[-1] for values in found.values()])
        return {id: (self._entry(*row), vector) for (id, (*row, _)), vector in zip(found.items(), vectors, strict=True)}

    def _select(self, columns: str, ids: Sequence[int]) -> dict[int, list[Any]]:
        """Columns by id; unknown ids are left out."""
        wanted = sorted({int(id) for id in ids if 0 < id < 2**63})  # SQLite's range
        found: dict[int, list[Any]] = {}
        with self._lock, _user_errors(self._path):
            for start in range(0, len(wanted), IDS_PER_QUERY):
                batch = wanted[start : start + IDS_PER_QUERY]
                places = ", ".join("?" * len(batch))
                rows = self._db.execute(f"SELECT id, {columns} FROM items WHERE id IN ({places})", batch)
                found |= {id: values for id, *values in rows}
        return found

    def _exact_index(self, after: int) -> ExactIndex:
        """An index of all items with ids above ``after``; rebuilt after a change."""
        with self._lock, _user_errors(self._path):
            version = self._value("PRAGMA data_version"), after
            if self._exact is None or self._exact[0] != version:
                self._exact = None  # free the old one first, to hold only one in memory
                self._exact = version, ExactIndex(*self._rows("WHERE id > ? ORDER BY id", after))
            return self._exact[1]

    def _approximate_index(self) -> ApproximateIndex | None:
        """The approximate index, loaded again when its file has changed; None if search is exact."""
        if len(self) <= vector_index.EXACT_UP_TO:
            return None
        with self._lock:
            signature = vector_index.signature(self._index_path)
            if self._approximate is None or self._approximate[0] != signature:
                self._approximate = signature, ApproximateIndex.load(self._index_path, self._dim)
            return self._approximate[1]

    def _saved_description(self, index: ApproximateIndex) -> str | None:
        """The sentence from the last tuning of this index; None if anything has changed since."""
        with suppress(OSError, ValueError, KeyError, TypeError):  # if missing or damaged, the index is tuned again
            saved = read_json(self._tuned_path)
            if saved["state"] == self._state(index):
                return str(saved["description"])
        return None

    def _state(self, index: ApproximateIndex) -> list[int]:
        """Differs after every put or removal: a put raises the last id, and a removal lowers the count."""
        with self._lock, _user_errors(self._path):
            last = self._value("SELECT MAX(seq) FROM sqlite_sequence WHERE name = 'items'")
            return [len(self), last, len(index), index.highest, index.effort]

    def _changed_since(self, index: ApproximateIndex) -> int:
        """Number of items added or removed since the index was built."""
        with self._lock, _user_errors(self._path):
            new = self._value("SELECT COUNT(*) FROM items WHERE id > ?", index.highest)
            return new + len(index) - (len(self) - new)

    def _sample(self, count: int) -> list[int]:
        """The ids of ``count`` random items, or of all if there are fewer."""
        with self._lock, _user_errors(self._path):
            ids = [id for (id,) in self._db.execute("SELECT id FROM items")]
        return random.Random(0).sample(ids, min(count, len(ids)))

    def _chunks(self) -> Iterator[tuple[Ids, Embeddings]]:
        last = 0
        while len((chunk := self._rows("WHERE id > ? ORDER BY id LIMIT ?", last, CHUNK))[0]):
            yield chunk
            last = int(chunk[0][-1])

    def _rows(self, where: str, *values: int | str) -> tuple[Ids, Embeddings]:
        with self._lock, _user_errors(self._path):
            rows = self._db.execute(f"SELECT id, vector FROM items {where}", values).fetchall()
        return np.array([id for id, _ in rows], np.int64), self._matrix([vector for _, vector in rows])

    def _entry(self, *values: Any) -> Entry:
        """Checks the types, since SQLite stores any value in any column."""
        if [*map(type, values)] != [str, str, int, int] or "\0" in values[0]:
            raise damaged(self._path, "an item is not a path, a label and two numbers")
        return Entry(*values)

    def _matrix(self, vectors: Sequence[object]) -> Embeddings:
        """(vectors, dim)"""
        valid = [vector for vector in vectors if isinstance(vector, bytes) and len(vector) == 4 * self._dim]
        rows = np.frombuffer(bytearray().join(valid), np.float32).reshape(-1, self._dim)  # writable, for torch
        if len(valid) < len(vectors) or not np.isfinite(rows).all():
            raise damaged(self._path, f"a vector does not have {self._dim} finite values")
        return rows

    def _value(self, command: str, *values: int) -> int:
        value = self._db.execute(command, values).fetchone()[0]
        if not isinstance(value, int):
            raise damaged(self._path, "a count is not a number")
        return value

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction."""
        with self._lock, _user_errors(self._path):
            check_file(self._path, self._dim)
            check_journal(self._path)
            with closing(self._connect("rw")) as db:
                db.execute("PRAGMA cache_spill = OFF")  # otherwise a large put locks readers out before its commit
                db.execute("BEGIN IMMEDIATE")
                try:
                    check_schema(db, self._path, TABLES.format(dim=self._dim))
                    yield db
                    db.execute("COMMIT")
                finally:
                    if db.in_transaction:
                        db.execute("ROLLBACK")


@contextmanager
def _user_errors(path: Path) -> Iterator[None]:
    """Turns errors of SQLite into a `UserError` about the file at ``path``."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise  # a bug, such as use after close
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "").removeprefix("SQLITE_")
        if name == "READONLY_ROLLBACK":
            raise unfinished(path) from error
        kind = name.split("_")[0]
        if kind == "FULL":
            raise cannot_write(path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))) from error
        if kind == "READONLY":
            raise cannot_write(path, OSError(str(error))) from error
        if kind in ("BUSY", "LOCKED"):
            raise UserError(f"another process is writing to {path.parent}; wait for it to end") from error
        if kind in ("CANTOPEN", "IOERR", "PERM", "NOMEM"):
            raise UserError(f"cannot read or write {path} ({error}); check its permissions and the disk") from error
        raise damaged(path, error) from error
