"""Items and their vectors in one SQLite file of the gallery's own folder.

Writes are transactions, one at a time. Any number of processes read, and see what was last committed. The journal is a
rollback journal, not a write-ahead log: that one needs to write in order to read, and does not work on network drives.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import random
import sqlite3
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from nearkin.errors import UserError
from nearkin.files import cannot_write, write_json
from nearkin.search import vector_index
from nearkin.search.store import Embeddings, Entry, Hit, checked_entries, checked_query, in_order, missing_items
from nearkin.search.vector_index import ApproximateIndex, ExactIndex, Ids

log = logging.getLogger("nearkin")

TIMEOUT = 30.0  # seconds to wait for another process that is writing
CHUNK = 20_000  # rows that are read at a time
IDS_PER_QUERY = 900  # old SQLite takes 999

# SQLite's user_version holds the dimension: it is there from the moment the table is.
TABLES = """
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS items (
    id INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT NOT NULL UNIQUE, label TEXT NOT NULL,
    size INTEGER NOT NULL,
    modified INTEGER NOT NULL, vector BLOB NOT NULL CHECK (length(vector) = 4 * {dim})
);
CREATE INDEX IF NOT EXISTS items_by_label ON items (label);
PRAGMA user_version = {dim};
COMMIT;
"""


class LocalStore:
    """See `Store`; may be used by several threads.

    >>> from tempfile import mkdtemp
    >>> store = LocalStore(Path(mkdtemp()), dim=2)
    >>> store.put([Entry("/a.jpg", "cat", 10, 0), Entry("/b.jpg", "dog", 10, 0)], np.eye(2, dtype=np.float32))
    >>> [(hit.entry.label, hit.distance) for hit in store.search(np.array([[0.0, 1.0]], np.float32), k=1)[0]]
    [('dog', 0.0)]
    >>> store.close()
    """

    def __init__(self, folder: Path, dim: int, create: bool = True) -> None:
        names = ("items.sqlite", "approximate.faiss", "approximate.json")
        self._path, self._index_path, self._tuned_path = (folder / name for name in names)
        if not create and not self._path.exists():
            raise missing_items(self._path)
        self._dim = dim
        self._lock = threading.RLock()
        self._writes = 0
        self._exact: tuple[Any, ExactIndex] | None = None  # and what it was made of
        self._approximate: tuple[Any, ApproximateIndex | None] | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(folder, error) from error
        with _user_errors(self._path):
            address = f"{self._path.resolve().as_uri()}?mode=rwc"
            self._db = sqlite3.connect(address, TIMEOUT, isolation_level=None, check_same_thread=False, uri=True)
        try:
            with _user_errors(self._path):
                self._prepare()
        except BaseException:
            self._db.close()
            raise

    def _prepare(self) -> None:
        self._db.execute("PRAGMA trusted_schema = OFF")  # a gallery may come from someone else
        self._db.execute("PRAGMA cache_spill = OFF")  # else a large put would lock readers out before it is committed
        if self._value("PRAGMA user_version") == 0:
            self._db.executescript(TABLES.format(dim=self._dim))
        kept = self._value("PRAGMA user_version")
        if kept != self._dim:
            raise UserError(
                f"{self._path} holds vectors of {kept} numbers, not {self._dim}; use the model that it was made with"
            )
        self._db.execute("SELECT id, path, label, size, modified, vector FROM items LIMIT 1").fetchone()

    def __len__(self) -> int:
        with self._lock, _user_errors(self._path):
            return self._value("SELECT COUNT(*) FROM items")

    def entries(self) -> dict[int, Entry]:
        with self._lock, _user_errors(self._path):
            rows = self._db.execute("SELECT id, path, label, size, modified FROM items ORDER BY id")
            return {id: Entry(*rest) for id, *rest in rows}

    def entries_of(self, ids: Sequence[int]) -> dict[int, Entry]:
        found = self._select("path, label, size, modified", ids)
        return {id: Entry(*found[id]) for id in ids if id in found}

    def counts(self) -> dict[str, int]:
        with self._lock, _user_errors(self._path):
            return dict(self._db.execute("SELECT label, COUNT(*) FROM items GROUP BY label ORDER BY label"))

    def ids(self, k: int, label: str | None = None) -> list[int]:
        which, values = ("", ()) if label is None else ("WHERE label = ?", (label,))
        with self._lock, _user_errors(self._path):
            rows = self._db.execute(f"SELECT id FROM items {which} ORDER BY id LIMIT ?", (*values, max(k, 0)))
            return [id for (id,) in rows]

    def put(self, entries: Sequence[Entry], vectors: Embeddings) -> None:
        rows = checked_entries(entries, vectors, self._dim).values()
        values = ((e.path, e.label, int(e.size), int(e.modified), vector.tobytes()) for e, vector in rows)
        with self._writing():
            # Replacing deletes the old row and gives a new id: a vector never changes under its id.
            self._db.executemany(
                "INSERT OR REPLACE INTO items (path, label, size, modified, vector) VALUES (?, ?, ?, ?, ?)", values
            )

    def remove(self, ids: Collection[int]) -> None:
        with self._writing():
            self._db.executemany("DELETE FROM items WHERE id = ?", ((int(id),) for id in ids))

    def vectors(self, ids: Sequence[int]) -> Embeddings:
        found = self._select("vector", ids)
        return in_order({id: np.frombuffer(vector, np.float32) for id, (vector,) in found.items()}, ids, self._dim)

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
            return f"{items:,} items are searched exactly; up to {up_to:,} that is fast."
        if not vector_index.available():
            return f"{items:,} items are searched exactly; pip install 'nearkin[search]' makes it faster."
        index = self._approximate_index() if self._index_path.exists() else None
        if index is not None and (description := self._saved_description(index)):
            return description
        effort = None if index is None else index.effort
        if index is None or self._changed_since(index) * 10 > items:
            sample = self.vectors(self._sample(vector_index.sample_size(items)))
            index, effort = ApproximateIndex.build(items, sample, self._chunks()), None
            self._approximate = vector_index.signature(self._index_path), index
        queries = self.vectors(self._sample(vector_index.TUNE_QUERIES))
        share, times = index.tune(self._distances, queries, self._chunks())
        if index.effort != effort:
            index.save(self._index_path)
            self._approximate = vector_index.signature(self._index_path), index
        description = (
            f"{items:,} items are searched with {index}: {share:.1%} of the {vector_index.TUNE_K} nearest are "
            f"found; exact search would take {times:.1f} times as long."
        )
        write_json(self._tuned_path, {"of": self._state(index), "said": description})
        return description

    def close(self) -> None:
        with self._lock:
            self._db.close()
            self._exact = self._approximate = None

    def _distances(self, queries: Embeddings, k: int) -> list[list[float]]:
        return [[hit.distance for hit in hits] for hits in self.search(queries, k)]

    def _search_approximately(self, index: ApproximateIndex, queries: Embeddings, k: int) -> list[list[Hit]] | None:
        """None where an exact search is better: a large k, or many items removed since the index was built."""
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
                log.warning("%s belongs to other items: searching exactly; delete it", self._index_path)
                self._approximate = vector_index.signature(self._index_path), None
                return None
            distances, ids = np.append(distances, new_distances[place]), np.append(ids, new_ids[place])
            nearest = np.lexsort((ids, distances))[:k]
            found.append((distances[nearest], ids[nearest]))
        return self._hits(*zip(*found, strict=True))

    def _hits(self, distances: Iterable[Embeddings], ids: Iterable[Ids]) -> list[list[Hit]]:
        """Hits of distances and ids (queries, k), without items that another process removed in the meantime."""
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
        """Entries and vectors of the ids that are there."""
        found = self._select("path, label, size, modified, vector", ids)
        return {id: (Entry(*row), np.frombuffer(vector, np.float32)) for id, (*row, vector) in found.items()}

    def _select(self, columns: str, ids: Sequence[int]) -> dict[int, list[Any]]:
        """Columns of the ids that are there."""
        wanted = sorted({int(id) for id in ids if 0 < id < 2**63})  # what SQLite can hold
        found: dict[int, list[Any]] = {}
        with self._lock, _user_errors(self._path):
            for start in range(0, len(wanted), IDS_PER_QUERY):
                some = wanted[start : start + IDS_PER_QUERY]
                places = ", ".join("?" * len(some))
                rows = self._db.execute(f"SELECT id, {columns} FROM items WHERE id IN ({places})", some)
                found |= {id: values for id, *values in rows}
        return found

    def _exact_index(self, after: int) -> ExactIndex:
        """All items with higher ids than this, ready to be searched; read again when they have changed."""
        with self._lock, _user_errors(self._path):
            # SQLite counts what other connections committed, not what this one did.
            version = self._value("PRAGMA data_version"), self._writes, after
            if self._exact is None or self._exact[0] != version:
                self._exact = None  # not two in memory at once
                self._exact = version, ExactIndex(*self._rows("WHERE id > ? ORDER BY id", after))
            return self._exact[1]

    def _approximate_index(self) -> ApproximateIndex | None:
        """The approximate index, read again when its file has changed; None where search is exact."""
        if len(self) <= vector_index.EXACT_UP_TO:
            return None
        with self._lock:
            signature = vector_index.signature(self._index_path)
            if self._approximate is None or self._approximate[0] != signature:
                self._approximate = signature, ApproximateIndex.load(self._index_path, self._dim)
            return self._approximate[1]

    def _saved_description(self, index: ApproximateIndex) -> str | None:
        """How this index is searched, as it was last tuned; None where anything has changed since."""
        with suppress(OSError, ValueError, KeyError, TypeError):  # without it, or with a damaged one, it is tuned again
            kept = json.loads(self._tuned_path.read_text(encoding="utf-8"))
            if kept["of"] == self._state(index):
                return str(kept["said"])
        return None

    def _state(self, index: ApproximateIndex) -> list[int]:
        """Changes with every item put or removed: no id is given twice, and between puts there are only ever fewer."""
        with self._lock, _user_errors(self._path):
            last = self._value("SELECT seq FROM sqlite_sequence WHERE name = 'items'")
            return [len(self), last, len(index), index.highest, index.effort]

    def _changed_since(self, index: ApproximateIndex) -> int:
        """How many items were removed from and put beside the index."""
        with self._lock, _user_errors(self._path):
            new = self._value("SELECT COUNT(*) FROM items WHERE id > ?", index.highest)
            return new + len(index) - (len(self) - new)

    def _sample(self, count: int) -> list[int]:
        """The ids of ``count`` items, or all, drawn evenly."""
        with self._lock, _user_errors(self._path):
            ids = [id for (id,) in self._db.execute("SELECT id FROM items")]
        return random.Random(0).sample(ids, min(count, len(ids)))

    def _chunks(self) -> Iterator[tuple[Ids, Embeddings]]:
        last = 0
        while len((chunk := self._rows("WHERE id > ? ORDER BY id LIMIT ?", last, CHUNK))[0]):
            yield chunk
            last = int(chunk[0][-1])

    def _rows(self, which: str, *values: int | str) -> tuple[Ids, Embeddings]:
        with self._lock, _user_errors(self._path):
            rows = self._db.execute(f"SELECT id, vector FROM items {which}", values).fetchall()
        vectors = np.frombuffer(bytearray().join(vector for _, vector in rows), np.float32)  # writable, for torch
        return np.array([id for id, _ in rows], np.int64), vectors.reshape(-1, self._dim)

    def _value(self, command: str, *values: int) -> int:
        return int(self._db.execute(command, values).fetchone()[0])

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One transaction."""
        with self._lock, _user_errors(self._path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            finally:
                self._writes += 1
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")


@contextmanager
def _user_errors(path: Path) -> Iterator[None]:
    """Turns SQLite's errors into sentences that say what to do; around all use of the file at ``path``."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise  # a bug: used after it was closed
    except sqlite3.Error as error:
        kind = getattr(error, "sqlite_errorname", "").removeprefix("SQLITE_").split("_")[0]
        if kind == "FULL":
            raise cannot_write(path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))) from error
        if kind == "READONLY":
            raise cannot_write(path, OSError(str(error))) from error
        if kind in ("BUSY", "LOCKED"):
            raise UserError(f"another process is writing to {path.parent}; wait for it to end") from error
        if kind in ("CANTOPEN", "IOERR", "PERM", "NOMEM"):
            raise UserError(f"could not read or write {path}: {error}; check its permissions and its disk") from error
        raise UserError(f"{path} is damaged or not a gallery's ({error}); make the gallery again") from error
