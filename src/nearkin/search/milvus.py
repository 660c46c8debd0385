"""Items and their vectors in Milvus: a cluster for galleries that outgrow one machine, or a file of its embedded form.

Milvus knows no transactions, but it replaces a row by one with the same key at once: the key is made of the path, so
that every path is there once, whatever stops a put, which goes in batches and may be repeated without harm. What others
see is the id, which a replaced item gets anew.
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
RETRY_AFTER = (0.5, 1.0, 2.0)  # seconds, before each further attempt
BATCH = 1000  # rows with their vectors
LIMIT = 16_384  # of what Milvus returns at once
LONGEST = 65_535  # bytes of a string
IDS = range(1, 2**53)  # what a web page, too, can hold exactly
IDS_A_MILLISECOND = 4096  # enough for a batch; the range lasts until the year 2039
FIELDS = ["path", "label", "size", "modified"]

T = TypeVar("T")
_users: Counter[str] = Counter()  # of embedded files that this process has open


def open_milvus(address: str, folder: Path, dim: int, mode: Mode = "create") -> MilvusStore:
    """The store at ``milvus://…``; a relative file is in the gallery's own folder."""
    return MilvusStore(*parse_address(address, folder), dim, create=mode == "create")


class MilvusStore:
    """See `Store`.

    Args:
        address: ``http://host:19530``, ``https://…``, or an absolute path that ends in ``.db``.
        collection: letters, digits and underscores.
        dim: of the vectors.
        create: whether the collection is made where there is none.
    """

    def __init__(self, address: str, collection: str, dim: int, create: bool = True) -> None:
        self._address, self._collection, self._dim = address, collection, dim
        self._embedded = address.endswith(".db")
        self._milvus = _package("pymilvus")
        self._failures = (self._milvus.MilvusException, _package("grpc").RpcError)
        if self._embedded:
            _package("milvus_lite")
        # They log every failure with its traceback; the embedded server, also each question that it cannot answer.
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
            which = f"id in {batch}"
            self._retry(partial(self._client.delete, self._collection, filter=which, timeout=TIMEOUT))

    def vectors(self, ids: Sequence[int]) -> Embeddings:
        found = self._select(ids, ["vector"])
        return in_order({id: row["vector"] for id, row in found.items()}, ids, self._dim)

    def search(self, queries: Embeddings, k: int, label: str | None = None) -> list[list[Hit]]:
        queries = checked_query(queries, self._dim, k)
        which = _label_filter(label)
        k = min(k, self._count(which))
        if k == 0:
            return [[] for _ in queries]
        if label is not None or k > LIMIT:  # its graph is searched first and filtered then: too few may be left
            return self._retry(lambda: self._search_exactly(queries, k, which))
        found: list[list[Hit]] = []
        step = max(1, 4 * LIMIT // k)
        for start in range(0, len(queries), step):
            part = list(queries[start : start + step])
            found += (self._hits(hits) for hits in self._retry(partial(self._search, part, k)))
        if short := [place for place, hits in enumerate(found) if len(hits) < k]:
            exact = self._retry(lambda: self._search_exactly(queries[short], k, which))
            for place, hits in zip(short, exact, strict=True):
                found[place] = hits
        return found

    def finish(self) -> str:
        self._retry(lambda: self._client.flush(self._collection, timeout=TIMEOUT))
        how = "exactly" if self._embedded else "with the index that it chose itself"
        return f"{len(self):,} items are searched {how} by Milvus at {self._address}."

    def close(self) -> None:
        self._client.close()
        if self._embedded and _users[self._address] > 0:
            _users[self._address] -= 1
            if _users[self._address] == 0:  # its server, and its lock on the file, would last as long as this process
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
                f"the collection {self._collection} at {self._address} is not a gallery's, or another version's; "
                "name another one"
            )
        kept = int(fields["vector"]["dim"])
        if kept != self._dim:
            raise UserError(
                f"the collection {self._collection} at {self._address} holds vectors of {kept} numbers, "
                f"not {self._dim}; use the model that it was made with, or name another collection"
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
        # Strong: what was put is found at once.
        self._client.create_collection(
            self._collection, schema=schema, index_params=index, consistency_level="Strong", timeout=TIMEOUT
        )

    def _select(self, ids: Iterable[int], fields: list[str]) -> dict[int, Any]:
        """The rows of the ids that are there."""
        return {row["id"]: row for batch in _batches(ids) for row in self._rows(f"id in {batch}", ["id", *fields])}

    def _new_ids(self, count: int) -> list[int]:
        """They rise with time, so that none is given twice; by chance within a millisecond, so that writers need not
        agree."""
        while True:
            now = time.time_ns() // 1_000_000 * IDS_A_MILLISECOND
            first = now + random.SystemRandom().randrange(IDS_A_MILLISECOND - count)
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

    def _search_exactly(self, queries: Embeddings, k: int, which: str) -> list[list[Hit]]:
        """The hits of queries (queries, dim) among all rows, a page at a time."""
        found: list[list[Hit]] = [[] for _ in queries]
        for page in self._pages(which, ["id", "vector", *FIELDS]):
            rows = {int(row["id"]): row for row in sorted(page, key=lambda row: int(row["id"]))}
            vectors = np.array([row["vector"] for row in rows.values()], np.float32)
            nearest = ExactIndex(np.array(list(rows), np.int64), vectors).nearest(queries, k)
            for place, (distances, ids) in enumerate(zip(*(part.tolist() for part in nearest), strict=True)):
                new = [Hit(id, _entry(rows[id]), distance) for distance, id in zip(distances, ids, strict=True)]
                found[place] = sorted(found[place] + new, key=_by_distance)[:k]
        return found

    def _hits(self, found: Iterable[Any]) -> list[Hit]:
        # Milvus leaves the root out, and rounding may leave a little less than nothing.
        hits = [Hit(hit["entity"]["id"], _entry(hit["entity"]), max(0.0, hit["distance"]) ** 0.5) for hit in found]
        return sorted(hits, key=_by_distance)

    def _count(self, which: str) -> int:
        return int(self._rows(which, ["count(*)"])[0]["count(*)"])

    def _rows(self, which: str, fields: list[str]) -> list[Any]:
        return self._retry(lambda: self._query(which, fields))

    def _query(self, which: str, fields: list[str]) -> list[Any]:
        return list(self._client.query(self._collection, filter=which, output_fields=fields, timeout=TIMEOUT))

    def _all_rows(self, which: str, fields: list[str], at_most: int = -1) -> list[Any]:
        return self._retry(lambda: [row for page in self._pages(which, fields, at_most) for row in page])

    def _pages(self, which: str, fields: list[str], at_most: int = -1) -> Iterator[list[Any]]:
        """All rows, of which Milvus returns a part at once."""
        size = BATCH if "vector" in fields else LIMIT  # every page takes long, however short it is
        pages = self._client.query_iterator(
            self._collection, batch_size=size, limit=at_most, filter=which, output_fields=fields, timeout=TIMEOUT
        )
        try:
            yield from iter(pages.next, [])
        finally:
            pages.close()

    def _retry(self, attempt: Callable[[], T]) -> T:
        """Calls ``attempt``, which may be repeated, a few times where Milvus does not answer."""
        for wait in (*RETRY_AFTER, None):
            try:
                return attempt()
            except self._failures as error:
                full = os.strerror(errno.ENOSPC)
                if self._embedded and full in str(error):
                    raise cannot_write(Path(self._address), OSError(errno.ENOSPC, full)) from error
                if self._embedded:
                    raise UserError(
                        f"Milvus could not use {self._address} ({_reason(error)}); see that no other process uses it"
                    ) from error
                if not _is_transient(error):
                    raise UserError(f"Milvus at {self._address} refuses: {_reason(error)}") from error
                if wait is None:
                    raise UserError(
                        f"Milvus at {self._address} does not answer; see that it runs and that {TOKEN} is right, and "
                        "try again: nothing that was stored is lost"
                    ) from error
                log.warning("Milvus at %s does not answer; trying again in %g s", self._address, wait)
                time.sleep(wait)
                if self._client is not None:
                    with suppress(*self._failures):
                        self._load()  # a server that was started again may have forgotten what was in use
        raise AssertionError("unreachable")


def _quoted(text: str) -> str:
    r"""A string in Milvus's filters.

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
    """Of a fixed length and without characters that mean something in Milvus's filters, unlike the path."""
    return hashlib.sha256(entry.path.encode()).hexdigest()


def _batches(ids: Iterable[int]) -> list[list[int]]:
    whole = [int(id) for id in ids if id in IDS]
    return [whole[start : start + BATCH] for start in range(0, len(whole), BATCH)]


def _package(name: str) -> Any:
    """A module of the extra, imported when it is needed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError("Milvus's client is not installed; pip install 'nearkin[milvus]'") from error


def _is_transient(error: Any) -> bool:
    """Whether the next attempt may work."""
    grpc = _package("grpc")
    code = error.code() if isinstance(error, grpc.RpcError) else error.code
    not_connected, not_loaded = 2, 101
    return code in (not_connected, not_loaded, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def _reason(error: Any) -> str:
    """The first line of its message."""
    message = getattr(error, "message", "") or str(error)
    return message.strip().splitlines()[0]
