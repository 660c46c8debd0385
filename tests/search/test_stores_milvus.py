"""Milvus only: no response, another collection, results in pages."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("milvus_lite")

from nearkin.errors import ResourceError, UserError
from nearkin.search import Entry, milvus, open_store


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Server:
    """A Milvus server that can be stopped and started."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder, self._port = folder, port
        self._running: list[Any] = []

    def start(self) -> None:
        from milvus_lite.adapter.grpc.server import start_server_in_thread

        self._running = list(start_server_in_thread(str(self._folder), port=self._port))

    def stop(self) -> None:
        if self._running:
            self._running[0].stop(grace=0).wait()
            self._running[1].close()
        self._running = []


@pytest.fixture
def server(tmp_path: Path, port: int) -> Iterator[Server]:
    made = Server(tmp_path, port)
    made.start()
    yield made
    made.stop()


def entries(count: int) -> list[Entry]:
    return [Entry(f"/{n}", "", 1, 1) for n in range(count)]


def test_milvus_without_a_response_is_one_sentence_after_a_few_retries(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(milvus, "RETRY_AFTER", (0.01, 0.02))
    start = time.monotonic()
    with pytest.raises(UserError, match=f"Milvus at http://127.0.0.1:{port} does not respond; .* items are not lost"):
        open_store(f"milvus://127.0.0.1:{port}/things", tmp_path, 2)
    assert time.monotonic() - start < 5
    assert [record.message.split("; ")[1] for record in caplog.records if record.name == "nearkin"] == [
        "retrying in 0.01 s",
        "retrying in 0.02 s",
    ]


def test_a_put_continues_when_milvus_is_back(
    server: Server, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(milvus, "BATCH", 4)
    monkeypatch.setattr(milvus, "RETRY_AFTER", (0.2,) * 50)
    store = open_store(f"milvus://127.0.0.1:{port}/things", tmp_path, 2)
    store.put(entries(3), np.zeros((3, 2), np.float32))
    server.stop()
    back = threading.Timer(0.5, server.start)
    back.start()
    store.put(entries(10), np.ones((10, 2), np.float32))
    back.join()
    assert "retrying" in caplog.text
    assert sorted(entry.path for entry in store.entries().values()) == [f"/{n}" for n in range(10)]
    assert np.array_equal(store.vectors(list(store.entries())), np.ones((10, 2)))
    store.close()


def test_a_put_that_was_sent_twice_is_stored_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store("milvus://./vectors.db", tmp_path, 2)
    upsert = store._client.upsert

    def twice(*arguments: object, **options: object) -> None:
        upsert(*arguments, **options)
        upsert(*arguments, **options)

    monkeypatch.setattr(store._client, "upsert", twice)
    store.put(entries(3), np.zeros((3, 2), np.float32))
    assert len(store) == 3
    store.close()


def test_two_writers_of_one_image_do_not_delete_each_others_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (open_store("milvus://./vectors.db", tmp_path, 2) for _ in range(2))
    upsert = first._client.upsert

    def both(*arguments: object, **options: object) -> None:
        upsert(*arguments, **options)
        second.put(entries(3), np.ones((3, 2), np.float32))

    monkeypatch.setattr(first._client, "upsert", both)
    first.put(entries(3), np.zeros((3, 2), np.float32))
    first.finish()
    assert len(first) == 3 and set(first.entries().values()) == set(entries(3))
    first.close()
    second.close()


@pytest.mark.parametrize("stopped", ["upsert", "delete"])
def test_an_interrupted_replacement_shows_every_item_once(
    tmp_path: Path, stopped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store("milvus://./vectors.db", tmp_path, 2)
    store.put(entries(3), np.zeros((3, 2), np.float32))
    done = getattr(store._client, stopped)

    def interrupted(*arguments: object, **options: object) -> None:
        if stopped == "upsert":
            done(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(store._client, stopped, interrupted)
    with suppress(KeyboardInterrupt):
        store.put(entries(2), np.ones((2, 2), np.float32))
    assert len(store) == len(store.entries()) == 3 and store.counts() == {"": 3} and len(store.ids(9)) == 3
    (hits,) = store.search(np.ones((1, 2), np.float32), 9)
    assert sorted((hit.entry.path, round(hit.distance, 4)) for hit in hits) == [("/0", 0), ("/1", 0), ("/2", 1.4142)]
    store.close()


def test_a_full_disk_under_embedded_milvus_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pymilvus import MilvusException

    def full(*_: object, **__: object) -> None:
        # The message of Milvus on a full disk.
        raise MilvusException(
            message="[Errno 28] Error writing bytes to file. Detail: [errno 28] No space left on device"
        )

    store = open_store("milvus://./vectors.db", tmp_path, 2)
    monkeypatch.setattr(store._client, "upsert", full)
    with pytest.raises(ResourceError, match=r"vectors\.db: no space left on device; .*free some space and try again"):
        store.put(entries(2), np.ones((2, 2), np.float32))
    store.close()


def test_embedded_milvus_logs_nothing_by_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("grpc._server").setLevel(logging.NOTSET)  # as if no earlier test had opened one
    store = open_store("milvus://./vectors.db", tmp_path, 2)
    store.put(entries(3), np.zeros((3, 2), np.float32))
    store.finish()
    store.search(np.zeros((1, 2), np.float32), 1)
    store.close()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("address", ["milvus://./vectors.db", "milvus://127.0.0.1:{port}/things"])
def test_a_store_that_must_exist_is_not_created(address: str, port: int, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"(vectors\.db|things).* is missing; restore it"):
        open_store(address.format(port=port), tmp_path, 2, "read")
    open_store(address.format(port=port), tmp_path, 2).close()
    open_store(address.format(port=port), tmp_path, 2, "read").close()


def test_entries_of_several_pages_are_all_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(milvus, "LIMIT", 7)
    store = open_store("milvus://./vectors.db", tmp_path, 2)
    store.put(entries(30), np.zeros((30, 2), np.float32))
    known = store.entries()
    assert set(known.values()) == set(entries(30)) and store.entries_of(list(known)) == known
    store.remove(list(store.entries())[:20])
    assert len(store) == len(store.entries()) == 10
    store.close()


def test_ids_and_labels_are_read_in_large_pages_and_vectors_in_small_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(milvus, "BATCH", 3)
    monkeypatch.setattr(milvus, "LIMIT", 7)
    store = open_store("milvus://./vectors.db", tmp_path, 2)
    store.put(entries(20), np.zeros((20, 2), np.float32))
    pages: list[int] = []
    query_iterator = store._client.query_iterator

    def counted(*arguments: Any, **options: Any) -> Any:
        iterator = query_iterator(*arguments, **options)
        following = iterator.next
        iterator.next = lambda: pages.append(len(page := following())) or page
        return iterator

    monkeypatch.setattr(store._client, "query_iterator", counted)
    for look in (lambda: store.ids(20), store.counts, store.entries):
        pages.clear()
        look()
        assert pages == [7, 7, 6, 0]
    pages.clear()
    store.search(np.zeros((1, 2), np.float32), 1, label="")
    assert max(pages) == 3
    store.close()


@pytest.mark.usefixtures("server")
def test_a_collection_that_is_not_a_gallery_is_refused(port: int, tmp_path: Path) -> None:
    from pymilvus import MilvusClient

    client = MilvusClient(f"http://127.0.0.1:{port}")
    client.create_collection("other", dimension=2)
    with pytest.raises(UserError, match=r"other at .* is not a gallery, or is from another version; choose another"):
        open_store(f"milvus://127.0.0.1:{port}/other", tmp_path, 2)
    client.close()


def test_two_stores_of_one_file_can_be_closed_one_by_one(tmp_path: Path) -> None:
    first, second = (open_store("milvus://./vectors.db", tmp_path, 2) for _ in range(2))
    first.put(entries(2), np.zeros((2, 2), np.float32))
    first.close()
    assert len(second) == 2
    second.close()


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("milvus://host:19530", r"names no collection; use .*milvus://\./items\.db for a file"),
        ("milvus://items.db", r"for a file, use milvus://\./items\.db"),
        ("milvus://items.db/g", r"for a file, use milvus://\./items\.db"),
        ("milvus:items.db", r"is unknown; .*milvus://\./items\.db"),
        ("milvus://host:19530/a-b", "names no collection"),
        ("milvus://host:19530/a/b", "names no collection"),
        ("milvus://host:port/a", "not valid"),
        ("milvus://host/a?secure", "names no collection"),
        ("milvus:///nowhere/vectors.db", "in an existing folder"),
        ("milvus://./vectors.sqlite", "ends in .db"),
        ("faiss://here", "store 'faiss://here' is unknown; leave out store .* or use milvus://"),
    ],
)
def test_an_invalid_address_is_refused_with_valid_forms(address: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        open_store(address, tmp_path, 2)


def test_a_password_in_the_address_is_refused_and_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"must not contain a password, .*; set the environment variable NEARKIN_MILVUS_TOKEN"
    ) as refused:
        open_store("milvus://me:secret@host/things", tmp_path, 2)
    assert "secret" not in str(refused.value)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Addresses and the tokens sent to them."""
    seen: list[tuple[str, str]] = []

    def connect(store: milvus.MilvusStore, token: str) -> None:
        seen.append((store._address, token))
        raise UserError("far enough")

    monkeypatch.setattr(milvus.MilvusStore, "_connect", connect)
    return seen


@pytest.mark.parametrize(("address", "opened", "warned"), [
    ("milvus://far.away/things", "http://far.away:19530", True),
    ("milvus://FAR.away:443/things?tls", "https://far.away:443", False),
    ("milvus://localhost/things", "http://localhost:19530", False),
    ("milvus://[::1]/things", "http://[::1]:19530", True),
])  # fmt: skip
def test_the_token_comes_from_the_environment_with_a_warning_if_unencrypted(
    address: str,
    opened: str,
    warned: bool,
    sent: list[tuple[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = "[::1]" if "::1" in opened else "localhost" if "localhost" in opened else "Far.away"
    monkeypatch.setenv("NEARKIN_MILVUS_TOKEN", f"{host}=me:secret=")
    with caplog.at_level(logging.WARNING), pytest.raises(UserError, match="far enough"):
        open_store(address, tmp_path, 2)
    assert sent == [(opened, "me:secret=")]
    assert ("unencrypted" in caplog.text) == warned
    assert "secret" not in caplog.text


@pytest.mark.parametrize("address", ["milvus://elsewhere/things?tls", "milvus://far.away.evil/far_away"])
def test_the_token_is_not_sent_to_another_host_with_a_warning(
    address: str,
    sent: list[tuple[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("NEARKIN_MILVUS_TOKEN", "far.away=me:secret")
    with caplog.at_level(logging.WARNING), pytest.raises(UserError):
        open_store(address, tmp_path, 2)
    assert [token for _, token in sent] == [""]
    assert "is for another host" in caplog.text and "secret" not in caplog.text


@pytest.mark.parametrize("token", ["secret", "me:secret", "me:secret=", "=secret", "far.away="])
def test_a_token_without_its_host_is_refused_and_not_repeated(
    token: str, sent: list[tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEARKIN_MILVUS_TOKEN", token)
    with pytest.raises(UserError, match=r"write NEARKIN_MILVUS_TOKEN=milvus\.example\.com=user:") as refused:
        open_store("milvus://far.away/things", tmp_path, 2)
    assert "secret" not in str(refused.value) and not sent
