"""Items and their vectors in Milvus: a cluster for galleries that outgrow one machine, or a file of its embedded form.

Milvus knows no transactions. A put goes in batches, each of which first adds the new items and then removes those that
they replace, and may be repeated without harm: whatever stops it, nothing that was there is lost, and the same put
again completes it. A cluster's token is taken from the environment, since the address is kept in the gallery.
"""

from __future__ import annotations

import importlib
import logging
import os
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import numpy as np

from nearkin.errors import UserError
from nearkin.search.store import Embeddings, Entry, Hit, checked_entries, checked_query

log = logging.getLogger("nearkin")

TOKEN = "NEARKIN_MILVUS_TOKEN"
PORT = 19530
CONNECTING, ANSWERING = 5.0, 20.0  # seconds it may take
WAITS = (0.5, 1.0, 2.0)  # seconds before each further attempt
BATCH = 1000
LIMIT = 16_384  # of what Milvus returns at once
LONGEST = 65_535  # bytes of a string
IDS = range(1, 2**53)  # what a web page, too, can hold exactly
FIELDS = ["path", "label", "size", "modified"]

T = TypeVar("T")
_users: Counter[str] = Counter()  # of embedded files that this process has open


def open_milvus(address: str, folder: Path, dim: int) -> MilvusStore:
    """The store at ``milvus://…``; a relative file lies in the gallery's own folder.

    >>> open_milvus("milvus://localhost", Path(), 64)
    Traceback (most recent call last):
    nearkin.errors.UserError: the address 'milvus://localhost' names no collection; write milvus://host:19530/collection
    """
    rest = address.removeprefix("milvus://")
    if rest.startswith(("/", "./", "../")):
        file = (folder / rest).resolve()
        if file.suffix != ".db" or not file.parent.is_dir():
            raise UserError(
                f"Milvus cannot keep its file at {file}; name a file in a folder that exists, ending in .db"
            )
        return MilvusStore(str(file), "gallery", dim)
    try:
        parts = urlsplit(f"//{rest}")
        host, port = parts.hostname, parts.port or PORT
    except ValueError as error:
        raise UserError(f"the address is not understood ({error}); write milvus://host:{PORT}/collection") from error
    if "@" in parts.netloc:
        raise UserError(f"an address is kept in the gallery; leave the password out, and set {TOKEN}=user:password")
    if not host or parts.query not in ("", "tls") or not re.fullmatch(r"/[A-Za-z_]\w{0,254}", parts.path, re.ASCII):
        raise UserError(f"the address '{address}' names no collection; write milvus://host:{PORT}/collection")
    host = f"[{host}]" if ":" in host else host
    return MilvusStore(f"http{'s' if parts.query else ''}://{host}:{port}", parts.path[1:], dim)


class MilvusStore:
    """See `Store`.

    Args:
        address: ``http://host:19530``, ``https://…``, or an absolute path that ends in ``.db``.
        collection: letters, digits and underscores; made where there is none.
        dim: of the vectors.
    """

    def __init__(self, address: str, collection: str, dim: int) -> None:
        self._address, self._collection, self._dim = address, collection, dim
        self._embedded = address.endswith(".db")
        self._milvus = _package("pymilvus")
        self._failures = (self._milvus.MilvusException, _package("grpc").RpcError)
        if self._embedded:
            _package("milvus_lite")
        for name in ("pymilvus", "milvus_lite"):  # they log every failure with its traceback
            logging.getLogger(name).setLevel(logging.CRITICAL)
        token = "" if self._embedded else os.environ.get(TOKEN, "")
        if token and not address.startswith(("https:", "http://localhost:", "http://127.0.0.1:")):
            log.warning("the token goes to %s unencrypted; if it offers TLS, add ?tls to the address", address)
        self._client: Any = None
        self._client = self._patiently(lambda: self._connect(token))
        _users[address] += self._embedded
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return self._count("")

    def entries(self) -> dict[int, Entry]:
        return dict(sorted((row["id"], _entry(row)) for row in self._patiently(self._all_rows)))

    def put(self, entries: Sequence[Entry], vectors: Embeddings) -> None:
        rows = list(checked_entries(entries, vectors, self._dim).values())
        for start in range(0, len(rows), BATCH):
            batch = rows[start : start + BATCH]
            values = [
                {"id": id, "vector": vector, **{name: getattr(entry, name) for name in FIELDS}}
                for id, (entry, vector) in zip(self._new_ids(len(batch)), batch, strict=True)
            ]
            self._patiently(partial(self._put, values))

    def remove(self, ids: Collection[int]) -> None:
        for batch in _batches(ids):
            self._patiently(partial(self._client.delete, self._collection, ids=batch, timeout=ANSWERING))

    def vectors(self, ids: Sequence[int]) -> Embeddings:
        found: dict[int, list[float]] = {}
        for batch in _batches(ids):
            found |= {row["id"]: row["vector"] for row in self._rows(f"id in {batch}", ["vector"])}
        missing = [id for id in ids if id not in found]
        if missing:
            raise UserError(f"the gallery has no item {missing[0]}; it may have been removed or replaced")
        return np.array([found[id] for id in ids], np.float32).reshape(-1, self._dim)

    def search(self, queries: Embeddings, k: int, label: str | None = None) -> list[list[Hit]]:
        queries = checked_query(queries, self._dim, k)
        which = "" if label is None else f"label == {_quoted(label)}"
        k = min(k, self._count(which))
        if k > LIMIT:
            raise UserError(f"Milvus finds at most {LIMIT:,} neighbours at once, not {k:,}; ask for fewer")
        if k == 0:
            return [[] for _ in queries]
        found: list[list[Hit]] = []
        step = max(1, 4 * LIMIT // k)
        for start in range(0, len(queries), step):
            part = list(queries[start : start + step])
            found += (self._hits(hits) for hits in self._patiently(partial(self._search, part, k, which)))
        return found

    def finish(self) -> str:
        self._patiently(lambda: self._client.flush(self._collection, timeout=ANSWERING))
        return f"{len(self):,} items are searched by Milvus at {self._address} with the index that it chose itself."

    def close(self) -> None:
        self._client.close()
        if self._embedded and _users[self._address] > 0:
            _users[self._address] -= 1
            if _users[self._address] == 0:  # its server, and its lock on the file, would last as long as this process
                _package("milvus_lite.server_manager").server_manager_instance.release_server(self._address)

    def _connect(self, token: str) -> Any:
        return self._milvus.MilvusClient(self._address, token=token, timeout=CONNECTING)

    def _prepare(self) -> None:
        if not self._patiently(lambda: self._client.has_collection(self._collection, timeout=ANSWERING)):
            self._patiently(self._create)
        about = self._patiently(lambda: self._client.describe_collection(self._collection, timeout=ANSWERING))
        fields = {field["name"]: field["params"] for field in about["fields"]}
        if fields.keys() != {"id", "vector", *FIELDS}:
            raise UserError(f"the collection {self._collection} at {self._address} is no gallery's; name another one")
        kept = int(fields["vector"]["dim"])
        if kept != self._dim:
            raise UserError(
                f"the collection {self._collection} at {self._address} holds vectors of {kept} numbers, "
                f"not {self._dim}; use the model that it was made with, or name another collection"
            )
        self._patiently(self._load)

    def _load(self) -> None:
        self._client.load_collection(self._collection, timeout=ANSWERING)

    def _create(self) -> None:
        kinds = self._milvus.DataType
        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", kinds.INT64, is_primary=True)
        for name in ("path", "label"):
            schema.add_field(name, kinds.VARCHAR, max_length=LONGEST)
        for name in ("size", "modified"):
            schema.add_field(name, kinds.INT64)
        schema.add_field("vector", kinds.FLOAT_VECTOR, dim=self._dim)
        index = self._client.prepare_index_params()
        index.add_index("vector", index_type="AUTOINDEX", metric_type="L2")
        # Strong: what was put is found at once.
        self._client.create_collection(
            self._collection, schema=schema, index_params=index, consistency_level="Strong", timeout=ANSWERING
        )

    def _put(self, values: list[dict[str, Any]]) -> None:
        self._client.upsert(self._collection, values, timeout=ANSWERING)
        paths = ", ".join(_quoted(row["path"]) for row in values)
        replaced = {row["id"] for row in self._query(f"path in [{paths}]", ["id"])} - {row["id"] for row in values}
        if replaced:
            self._client.delete(self._collection, ids=list(replaced), timeout=ANSWERING)

    def _new_ids(self, count: int) -> list[int]:
        """Drawn by chance, so that several writers need not agree, and known before they are sent: sent twice, an
        item is still there once."""
        while True:
            ids = random.SystemRandom().sample(IDS, count)
            if not self._rows(f"id in {ids}", ["id"]):
                return ids

    def _search(self, queries: list[Any], k: int, which: str) -> Any:
        return self._client.search(
            self._collection,
            queries,
            filter=which,
            limit=k,
            output_fields=FIELDS,
            search_params={"metric_type": "L2"},
            timeout=ANSWERING,
        )

    def _hits(self, found: Iterable[Any]) -> list[Hit]:
        # Milvus leaves the root out, and rounding may leave a little less than nothing.
        hits = [Hit(hit["id"], _entry(hit["entity"]), max(0.0, hit["distance"]) ** 0.5) for hit in found]
        return sorted(hits, key=lambda hit: (hit.distance, hit.id))

    def _count(self, which: str) -> int:
        return int(self._rows(which, ["count(*)"])[0]["count(*)"])

    def _rows(self, which: str, fields: list[str]) -> list[Any]:
        return self._patiently(lambda: self._query(which, fields))

    def _query(self, which: str, fields: list[str]) -> list[Any]:
        return list(self._client.query(self._collection, filter=which, output_fields=fields, timeout=ANSWERING))

    def _all_rows(self) -> list[Any]:
        pages = self._client.query_iterator(
            self._collection, batch_size=BATCH, output_fields=["id", *FIELDS], timeout=ANSWERING
        )
        try:
            return [row for page in iter(pages.next, []) for row in page]
        finally:
            pages.close()

    def _patiently(self, attempt: Callable[[], T]) -> T:
        """What was attempted, a few times where Milvus does not answer; whatever is attempted may be repeated."""
        for wait in (*WAITS, None):
            try:
                return attempt()
            except self._failures as error:
                if self._embedded:
                    raise UserError(
                        f"Milvus could not use {self._address} ({_reason(error)}); see that no other process uses it"
                    ) from error
                if not _passing(error):
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


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError("Milvus's client is not installed; pip install 'nearkin[milvus]'") from error


def _passing(error: Any) -> bool:
    """Whether a failure may be gone at the next attempt."""
    grpc = _package("grpc")
    code = error.code() if isinstance(error, grpc.RpcError) else error.code
    not_connected, not_loaded = 2, 101
    return code in (not_connected, not_loaded, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def _reason(error: Any) -> str:
    said = getattr(error, "message", "") or str(error)
    return said.strip().splitlines()[0]


def _quoted(text: str) -> str:
    r"""A string in Milvus's filters.

    >>> print(_quoted('a "b"\n'))
    "a \"b\"\n"
    """
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def _entry(row: Any) -> Entry:
    return Entry(*(row[name] for name in FIELDS))


def _batches(ids: Iterable[int]) -> list[list[int]]:
    whole = [int(id) for id in ids]
    return [whole[start : start + BATCH] for start in range(0, len(whole), BATCH)]
