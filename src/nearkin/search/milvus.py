"""The Milvus store: a cluster for galleries that outgrow one machine, or a file of embedded Milvus (milvus-lite).

Milvus has no transactions, but it replaces a row with the same key atomically. The key is a hash of the path, so every
path is stored once, even if a put is interrupted. A put goes in batches and can safely be repeated. Users of the store
see ids instead of keys; a replaced item gets a new id.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import logging
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from nearkin.errors import UserError
from nearkin.files import cannot_write
from nearkin.search.milvus_address import TOKEN, parse_address, token_for
from nearkin.search.store import Embeddings, Entry, Hit, Mode, checked_entries, checked_query, in_order, missing_items
from nearkin.search.vector_index import ExactIndex

log = logging.getLogger("nearkin")

CONNECT_TIMEOUT, TIMEOUT = 5.0, 20.0  # seconds
RETRY_AFTER = (0.5, 1.0, 2.0)  # seconds to wait before each retry
BATCH = 1000  # rows with vectors per request
LIMIT = 16_384  # most rows that Milvus returns at once
LONGEST = 65_535  # bytes in a string
IDS = range(1, 2**53)  # JavaScript represents these exactly
IDS_PER_MILLISECOND = 4096  # enough for a batch; the range lasts until the year 2039
FIELDS = ["path", "label", "size", "modified"]

T = TypeVar("T")
_users: Counter[str] = Counter()  # open stores of this process per embedded file


def open_milvus(address: str, folder: Path, dim: int, mode: Mode = "create") -> MilvusStore:
    """Opens the store at ``milvus://…``; a relative file is in the gallery's folder."""
    return MilvusStore(*parse_address(address, folder), dim, create=mode == "create")


class MilvusStore:
    """A `Store` in Milvus.

    Args:
        address: ``http://host:19530``, ``https://…``, or an absolute path that ends in ``.db``.
        collection: letters, digits and underscores.
        dim: dimension of the vectors.
        create: whether to create the collection if it does not exist.
    """

    def __init__(self, address: str, collection: str, dim: int, create: bool = True) -> None:
        self._address, self._collection, self._dim = address, collection, dim
        self._embedded = address.endswith(".db")
        self._milvus = _package("pymilvus")
        self._failures = (self._milvus.MilvusException, _package("grpc").RpcError)
        if self._embedded:
            _package("milvus_lite")
        # These log every failure with its traceback. The embedded server also logs each request it does not support.
        for name in ("pymilvus", "milvus_lite", *(["grpc._server"] if self._embedded else [])):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        if self._embedded and not create and not Path(address).exists():
            raise missing_items(address)
        token = "" if self._embedded else token_for(address)
        self._client: Any = None
        self._client = self._retry(lambda: self._connect(token))
        _users[address] += self._embedded
        try:
            self._prepare(create)
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return self._count("")

    def entries(self) -> dict[int, Entry]:
        rows = sorted(self._all_rows("", ["id", *FIELDS]), key=lambda row: int(row["id"]))
        return {row["id"]: _entry(row) for row in rows}

    def entries_of(self, ids: Sequence[int]) -> dict[int, Entry]:
        found = self._select(ids, FIELDS)
        return {id: _entry(found[id]) for id in ids if id in found}

    def counts(self) -> dict[str, int]:
        return dict(sorted(Counter(row["label"] for row in self._all_rows("", ["label"])).items()))

    def ids(self, k: int, label: str | None = None) -> list[int]:
        return sorted(row["id"] for row in self._all_rows(_label_filter(label), ["id"], k)) if k > 0 else []

    def put(self, entries: Sequence[Entry], vectors: Embeddings) -> None:
        rows = list(checked_entries(entries, vectors, self._dim).values())
        for start in range(0, len(rows), BATCH):
            batch = rows[start : start + BATCH]
            values = [
                {"key": _key(entry), "id": id, "vector": vector, **{name: getattr(entry, name) for name in FIELDS}}
                for id, (entry, vector) in zip(self._new_ids(len(batch)), batch, strict=True)
            ]
            self._retry(partial(self._client.upsert, self._collection, values, timeout=TIMEOUT))

    def remove(self, ids: Collection[int]) -> None:
        for batch in _batches(ids):
            self._retry(partial(self._client.delete, self._collection, filter=f"id in {batch}", timeout=TIMEOUT))

    def vectors(self, ids: Sequence[int]) -> Embeddings:
        found = self._select(ids, ["vector"])
        return in_order({id: row["vector"] for id, row in found.items()}, ids, self._dim)

    def search(self, queries: Embeddings, k: int, label: str | None = None) -> list[list[Hit]]:
        queries = checked_query(queries, self._dim, k)
        where = _label_filter(label)
        k = min(k, self._count(where))
        if k == 0:
            return [[] for _ in queries]
        if label is not None or k > LIMIT:  # Milvus searches its graph before it filters, so too few may be left
            return self._retry(lambda: self._search_exactly(queries, k, where))
        found: list[list[Hit]] = []
        step = max(1, 4 * LIMIT // k)
        for start in range(0, len(queries), step):
            batch = list(queries[start : start + step])
            found += (self._hits(hits) for hits in self._retry(partial(self._search, batch, k)))
        if short := [row for row, hits in enumerate(found) if len(hits) < k]:
            exact = self._retry(lambda: self._search_exactly(queries[short], k, where))
            for row, hits in zip(short, exact, strict=True):
                found[row] = hits
        return found

    def finish(self) -> str:
        self._retry(lambda: self._client.flush(self._collection, timeout=TIMEOUT))
        how = "exactly" if self._embedded else "with its automatic index"
        return f"{len(self):,} items are searched {how} by Milvus at {self._address}."

    def close(self) -> None:
        self._client.close()
        if self._embedded and _users[self._address] > 0:
            _users[self._address] -= 1
            if _users[self._address] == 0:  # otherwise its server holds the lock on the file until this process ends
                _package("milvus_lite.server_manager").server_manager_instance.release_server(self._address)

    def _connect(self, token: str) -> Any:
        return self._milvus.MilvusClient(self._address, token=token, timeout=CONNECT_TIMEOUT)

    def _prepare(self, create: bool) -> None:
        if not self._retry(lambda: self._client.has_collection(self._collection, timeout=TIMEOUT)):
            if not create:
                raise missing_items(f"the collection {self._collection} at {self._address}")
            self._retry(self._create)
        about = self._retry(lambda: self._client.describe_collection(self._collection, timeout=TIMEOUT))
        fields = {field["name"]: field["params"] for field in about["fields"]}
        if fields.keys() != {"key", "id", "vector", *FIELDS}:
            raise UserError(
                f"the collection {self._collection} at {self._address} is not a gallery, or is from another version; "
                "choose another collection"
            )
        dim = int(fields["vector"]["dim"])
        if dim != self._dim:
            raise UserError(
                f"the collection {self._collection} at {self._address} has vectors of dimension {dim}, "
                f"not {self._dim}; use the model that it was made with, or choose another collection"
            )
        self._retry(self._load)

    def _load(self) -> None:
        self._client.load_collection(self._collection, timeout=TIMEOUT)

    def _create(self) -> None:
        kinds = self._milvus.DataType
        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("key", kinds.VARCHAR, max_length=64, is_primary=True)
        for name in ("path", "label"):
            schema.add_field(name, kinds.VARCHAR, max_length=LONGEST)
        for name in ("id", "size", "modified"):
            schema.add_field(name, kinds.INT64)
        schema.add_field("vector", kinds.FLOAT_VECTOR, dim=self._dim)
        index = self._client.prepare_index_params()
        index.add_index("vector", index_type="FLAT" if self._embedded else "AUTOINDEX", metric_type="L2")
        index.add_index("id", index_type="INVERTED")
        # "Strong" consistency: a search finds items as soon as they are put.
        self._client.create_collection(
            self._collection, schema=schema, index_params=index, consistency_level="Strong", timeout=TIMEOUT
        )

    def _select(self, ids: Iterable[int], fields: list[str]) -> dict[int, Any]:
        """Rows by id; unknown ids are left out."""
        return {row["id"]: row for batch in _batches(ids) for row in self._rows(f"id in {batch}", ["id", *fields])}

    def _new_ids(self, count: int) -> list[int]:
        """Ids increase with time, so that none is used twice. Within a millisecond they are random, so that writers
        need not coordinate."""
        while True:
            now = time.time_ns() // 1_000_000 * IDS_PER_MILLISECOND
            first = now + random.SystemRandom().randrange(IDS_PER_MILLISECOND - count)
            ids = list(range(first, first + count))
            if not self._select(ids, []):
                return ids

    def _search(self, queries: list[Any], k: int) -> Any:
        return self._client.search(
            self._collection,
            queries,
            limit=k,
            output_fields=["id", *FIELDS],
            search_params={"metric_type": "L2"},
            timeout=TIMEOUT,
        )

    def _search_exactly(self, queries: Embeddings, k: int, where: str) -> list[list[Hit]]:
        """Hits of queries (queries, dim) among all rows that pass the filter, read page by page."""
        found: list[list[Hit]] = [[] for _ in queries]
        for page in self._pages(where, ["id", "vector", *FIELDS]):
            rows = {int(row["id"]): row for row in sorted(page, key=lambda row: int(row["id"]))}
            vectors = np.array([row["vector"] for row in rows.values()], np.float32)
            nearest = ExactIndex(np.array(list(rows), np.int64), vectors).nearest(queries, k)
            for query, (distances, ids) in enumerate(zip(*(part.tolist() for part in nearest), strict=True)):
                new = [Hit(id, _entry(rows[id]), distance) for distance, id in zip(distances, ids, strict=True)]
                found[query] = sorted(found[query] + new, key=_by_distance)[:k]
        return found

    def _hits(self, found: Iterable[Any]) -> list[Hit]:
        # Milvus returns squared distances, which rounding may make slightly negative.
        hits = [Hit(hit["entity"]["id"], _entry(hit["entity"]), max(0.0, hit["distance"]) ** 0.5) for hit in found]
        return sorted(hits, key=_by_distance)

    def _count(self, where: str) -> int:
        return int(self._rows(where, ["count(*)"])[0]["count(*)"])

    def _rows(self, where: str, fields: list[str]) -> list[Any]:
        return self._retry(lambda: self._query(where, fields))

    def _query(self, where: str, fields: list[str]) -> list[Any]:
        return list(self._client.query(self._collection, filter=where, output_fields=fields, timeout=TIMEOUT))

    def _all_rows(self, where: str, fields: list[str], limit: int = -1) -> list[Any]:
        return self._retry(lambda: [row for page in self._pages(where, fields, limit) for row in page])

    def _pages(self, where: str, fields: list[str], limit: int = -1) -> Iterator[list[Any]]:
        """Yields all rows that pass the filter, in pages, since Milvus limits how many it returns at once."""
        size = BATCH if "vector" in fields else LIMIT  # each page takes long, however short it is
        pages = self._client.query_iterator(
            self._collection, batch_size=size, limit=limit, filter=where, output_fields=fields, timeout=TIMEOUT
        )
        try:
            yield from iter(pages.next, [])
        finally:
            pages.close()

    def _retry(self, attempt: Callable[[], T]) -> T:
        """Calls ``attempt``, which must be repeatable, and again a few times if Milvus does not respond."""
        for wait in (*RETRY_AFTER, None):
            try:
                return attempt()
            except self._failures as error:
                full = os.strerror(errno.ENOSPC)
                if self._embedded and full in str(error):
                    raise cannot_write(Path(self._address), OSError(errno.ENOSPC, full)) from error
                if self._embedded:
                    raise UserError(
                        f"Milvus cannot use {self._address} ({_reason(error)}); check that no other process uses it"
                    ) from error
                if not _is_transient(error):
                    raise UserError(f"Milvus at {self._address} refused the request: {_reason(error)}") from error
                if wait is None:
                    raise UserError(
                        f"Milvus at {self._address} does not respond; check that it is running and that {TOKEN} is "
                        "correct, then try again: stored items are not lost"
                    ) from error
                log.warning("Milvus at %s does not respond; retrying in %g s", self._address, wait)
                time.sleep(wait)
                if self._client is not None:
                    with suppress(*self._failures):
                        self._load()  # a restarted server may have unloaded the collection
        raise AssertionError("unreachable")


def _quoted(text: str) -> str:
    r"""A string literal for a Milvus filter.

    >>> print(_quoted('a "b"\n'))
    "a \"b\"\n"
    """
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def _by_distance(hit: Hit) -> tuple[float, int]:
    return hit.distance, hit.id


def _label_filter(label: str | None) -> str:
    return "" if label is None else f"label == {_quoted(label)}"


def _entry(row: Any) -> Entry:
    return Entry(*(row[name] for name in FIELDS))


def _key(entry: Entry) -> str:
    """A hash of the path. Its length is fixed, and it needs no quoting in filters."""
    return hashlib.sha256(entry.path.encode()).hexdigest()


def _batches(ids: Iterable[int]) -> list[list[int]]:
    valid = [int(id) for id in ids if id in IDS]
    return [valid[start : start + BATCH] for start in range(0, len(valid), BATCH)]


def _package(name: str) -> Any:
    """Imports a module of the optional extra."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError("Milvus needs its Python client; run `pip install 'nearkin[milvus]'`") from error


def _is_transient(error: Any) -> bool:
    """Whether a retry may succeed."""
    grpc = _package("grpc")
    code = error.code() if isinstance(error, grpc.RpcError) else error.code
    not_connected, not_loaded = 2, 101
    return code in (not_connected, not_loaded, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def _reason(error: Any) -> str:
    """The first line of the error's message."""
    message = getattr(error, "message", "") or str(error)
    return message.strip().splitlines()[0]
