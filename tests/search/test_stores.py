"""All stores behave alike; the reference is a dictionary and a sort of all distances."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nearkin.errors import UserError
from nearkin.search import Entry, Hit, Store, open_store
from nearkin.search.store import Embeddings, ItemNotFound

DIM = 3
ADDRESSES = {"local": "", "milvus": "milvus://./vectors.db"}
NASTY = [
    "/it's.jpg",
    '/"quoted".jpg',
    "/back\\slash.jpg",
    "/new\nline\r\t.jpg",
    "/żółw 🐢.jpg",
    "/{a} % in [1].jpg",
    "/a' or '",
]

Open = Callable[[], Store]


def entry(path: str, label: str = "") -> Entry:
    return Entry(path, label, size=2**40, modified=1_700_000_000_123_456_789)


def points(*rows: tuple[float, ...]) -> Embeddings:
    return np.array(rows, np.float32).reshape(-1, DIM)


@pytest.fixture(params=sorted(ADDRESSES))
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Closes the store and opens it again."""
    if request.param == "milvus" and importlib.util.find_spec("milvus_lite") is None:
        pytest.skip("milvus-lite is not installed")
    opened: list[Store] = []

    def again() -> Store:
        if opened:
            opened.pop().close()
        opened.append(open_store(ADDRESSES[request.param], tmp_path, DIM))
        return opened[-1]

    yield again
    opened.pop().close()


@pytest.fixture(params=[*sorted(ADDRESSES), "milvus server"])
def many(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """1,200 items near the origin and 40 far away with another label, ready to be searched."""
    address, server = ADDRESSES.get(request.param, ""), None
    if request.param != "local":
        pytest.importorskip("milvus_lite")
    if request.param == "milvus server":
        from milvus_lite.adapter.grpc.server import start_server_in_thread

        server, database, port = start_server_in_thread(str(tmp_path / "server"), port=0)
        address = f"milvus://127.0.0.1:{port}/things"
    store = open_store(address, tmp_path, DIM)
    vectors = np.random.default_rng(0).standard_normal((1240, DIM)).astype(np.float32)
    vectors[1200:] += 50
    store.put([entry(f"/{n}", "near" if n < 1200 else "far") for n in range(1240)], vectors)
    store.finish()
    yield store
    store.close()
    if server is not None:
        server.stop(grace=0).wait()
        database.close()


def assert_nearest(hits: list[Hit], query: Embeddings, kept: dict[str, tuple[Entry, Embeddings]], k: int) -> None:
    """Checks that these are the k nearest; ties may come in any order."""
    distances = {path: float(np.linalg.norm(vector.astype(float) - query)) for path, (_, vector) in kept.items()}
    assert [hit.distance for hit in hits] == pytest.approx(sorted(distances.values())[:k], abs=1e-5)
    assert len({hit.id for hit in hits}) == len({hit.entry.path for hit in hits}) == len(hits)
    for hit in hits:
        assert hit.entry == kept[hit.entry.path][0]
        assert hit.distance == pytest.approx(distances[hit.entry.path], abs=1e-5)


PATHS = st.sampled_from(["/a", "/b", "/c", *NASTY[:4]])
LABELS = st.sampled_from(["", "cat", 'the "dog"\n'])
VECTORS = st.tuples(*[st.integers(-2, 2)] * DIM)
PUT = st.tuples(st.just("put"), st.lists(st.tuples(PATHS, LABELS, VECTORS), max_size=6))
REMOVE = st.tuples(st.just("remove"), st.sets(PATHS))
SEARCH = st.tuples(st.just("search"), st.tuples(VECTORS, st.integers(1, 9), st.none() | LABELS))


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(PUT | REMOVE | SEARCH, min_size=1, max_size=6))
def test_a_store_is_a_dictionary_by_path_that_can_be_searched(reopen: Open, steps: list[tuple[str, object]]) -> None:
    store = reopen()
    store.remove(store.entries().keys())
    kept: dict[str, tuple[Entry, Embeddings]] = {}
    seen: set[int] = set()
    for step in [*steps, ("search", ((0, 0, 1), 4, None))]:
        match step:
            case ("put", items):
                entries, vectors = [entry(path, label) for path, label, _ in items], points(*(x for *_, x in items))
                store.put(entries, vectors)
                kept |= {each.path: (each, vector) for each, vector in zip(entries, vectors, strict=True)}
            case ("remove", paths):
                gone = {id for id, each in store.entries().items() if each.path in paths}
                store.remove(gone)
                seen |= gone
                kept = {path: value for path, value in kept.items() if path not in paths}
            case ("search", (query, k, label)):
                with_label = {path: value for path, value in kept.items() if label in (None, value[0].label)}
                (hits,) = store.search(points(query), k, label)
                assert_nearest(hits, points(query)[0], with_label, k)
        found = store.entries()
        assert {each.path: each for each in found.values()} == {path: each for path, (each, _) in kept.items()}
        assert len(store) == len(found) == len(kept)
        assert list(found) == sorted(found)
        assert not seen & found.keys()  # no id is used twice
        assert np.array_equal(store.vectors(list(found)), points(*(kept[each.path][1] for each in found.values())))


def test_items_are_there_after_reopening(reopen: Open) -> None:
    entries = [entry(path, label) for path, label in zip(NASTY, reversed(NASTY), strict=True)]
    vectors = np.random.default_rng(0).standard_normal((len(NASTY), DIM)).astype(np.float32)
    reopen().put(entries, vectors)
    store = reopen()
    assert set(store.entries().values()) == set(entries)
    for place, each in enumerate(entries):
        (hit,) = store.search(vectors[place : place + 1], 5, label=each.label)[0]
        assert (hit.entry, hit.distance) == (each, 0.0)
    assert store.finish().startswith(f"{len(NASTY)} items are searched ")


def test_a_replaced_item_gets_a_new_id_and_vector(reopen: Open) -> None:
    store = reopen()
    store.put([entry("/a", "old"), entry("/b")], points((0, 0, 0), (9, 0, 0)))
    before = {each.path: id for id, each in store.entries().items()}
    store.put([entry("/a", "new")], points((5, 0, 0)))
    after = {each.path: id for id, each in store.entries().items()}
    assert after["/b"] == before["/b"]
    assert after["/a"] != before["/a"]
    assert [hit.entry.label for hit in store.search(points((0, 0, 0)), 2)[0]] == ["new", ""]
    with pytest.raises(UserError, match=f"no item {before['/a']}"):
        store.vectors([before["/a"]])


def test_entries_come_in_the_given_order_without_unknown_ids(reopen: Open) -> None:
    store = reopen()
    assert store.entries_of([1]) == store.entries_of([]) == {}
    count = 1100  # more than fit into one SQL query
    store.put([entry(f"/{n}") for n in range(count)], np.zeros((count, DIM), np.float32))
    known = store.entries()
    backwards = sorted(known, reverse=True)
    asked = [0, -1, backwards[0] + 1, 10**30, *backwards, backwards[5]]
    assert list(store.entries_of(asked).items()) == [(id, known[id]) for id in backwards]
    assert len(store.vectors(backwards)) == count
    store.remove(backwards[:2])
    assert list(store.entries_of(backwards[:3])) == backwards[2:3]
    with pytest.raises(ItemNotFound, match=f"no item {backwards[1]}; it may have been removed or replaced"):
        store.vectors([backwards[2], backwards[1]])


def test_a_few_ids_and_counts_per_label(reopen: Open) -> None:
    store = reopen()
    assert (store.counts(), store.ids(5)) == ({}, [])
    labels = ["", "cat", 'the "dog"\n', "cat", ""]
    store.put([entry(f"/{n}", label) for n, label in enumerate(labels)], points(*[(0, 0, 0)] * 5))
    known = store.entries()
    assert list(store.counts().items()) == [("", 2), ("cat", 2), ('the "dog"\n', 1)]
    assert sorted(store.ids(99)) == list(known) and store.ids(0) == []
    assert len(store.ids(3)) == 3 and set(store.ids(3)) <= known.keys()
    for label in ("", "cat", "cow"):
        assert store.ids(99, label) == [id for id, each in known.items() if each.label == label]
    assert known[store.ids(1, "cat")[0]].label == "cat"
    store.remove(store.ids(1, "cat"))
    assert store.counts()["cat"] == 1


@pytest.mark.parametrize("k", [5, 40, 1240])
def test_a_distant_label_and_a_large_k_are_searched_exactly(many: Store, k: int) -> None:
    known, queries = many.entries(), points((0, 0, 0), (1, 2, 3))
    vectors = dict(zip([each.path for each in known.values()], many.vectors(list(known)), strict=True))
    for label in (None, "far", "near"):
        kept = {each.path: (each, vectors[each.path]) for each in known.values() if label in (None, each.label)}
        for query, hits in zip(queries, many.search(queries, k, label), strict=True):
            assert_nearest(hits, query, kept, k)


def test_the_last_entry_counts_if_a_path_is_put_twice(reopen: Open) -> None:
    store = reopen()
    store.put([entry("/a", "first"), entry("/a", "last")], points((0, 0, 0), (1, 0, 0)))
    assert [(hit.entry.label, hit.distance) for hit in store.search(points((0, 0, 0)), 9)[0]] == [("last", 1.0)]


def test_an_empty_store_finds_nothing(reopen: Open) -> None:
    store = reopen()
    store.put([], points())
    store.remove([12345])
    assert (len(store), store.entries(), store.search(points((0, 0, 0), (1, 1, 1)), 3)) == (0, {}, [[], []])
    assert store.vectors([]).shape == (0, DIM)
    store.put([entry("/a", "cat")], points((0, 0, 0)))
    assert store.search(points((0, 0, 0)), 3, label="dog") == [[]]
    assert store.search(points(), 3) == []


def test_vectors_come_in_the_given_order(reopen: Open) -> None:
    store = reopen()
    store.put([entry(f"/{n}") for n in range(5)], points(*((n, 0, 0) for n in range(5))))
    ids = {each.path: id for id, each in store.entries().items()}
    wanted = [ids["/3"], ids["/0"], ids["/3"]]
    assert store.vectors(wanted)[:, 0].tolist() == [3, 0, 3]


def test_wrong_vectors_are_refused_and_change_nothing(reopen: Open) -> None:
    store = reopen()
    store.put([entry("/a")], points((0, 0, 0)))
    for wrong, reason in [
        (np.zeros((1, 4)), "dimension 3"),
        (np.full((1, DIM), np.nan), "NaN"),
        (points(), "0 vectors"),
    ]:
        with pytest.raises(UserError, match=reason):
            store.put([entry("/b")], wrong.astype(np.float32))
    with pytest.raises(UserError, match="not valid Unicode"):
        store.put([entry("/b"), entry("/bad\udcff")], points((0, 0, 0), (1, 1, 1)))
    with pytest.raises(UserError, match="dimension 3"):
        store.search(np.zeros((1, 4), np.float32), 1)
    with pytest.raises(UserError, match="k must be an integer >= 1, got 0"):
        store.search(points((0, 0, 0)), 0)
    assert [each.path for each in store.entries().values()] == ["/a"]


@pytest.mark.parametrize("address", ADDRESSES.values())
def test_a_store_of_another_dimension_is_refused(address: str, tmp_path: Path) -> None:
    if address:
        pytest.importorskip("milvus_lite")
    open_store(address, tmp_path, DIM).close()
    with pytest.raises(UserError, match="vectors of dimension 3, not 4"):
        open_store(address, tmp_path, 4)
    open_store(address, tmp_path, DIM).close()
