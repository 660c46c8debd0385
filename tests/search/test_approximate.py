"""Above a number of items (a small one here), an approximate index proposes candidates; distances stay exact."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from benchmarks.campaign.worker import peak_of, reset_peak

from nearkin.search import Entry, vector_index
from nearkin.search.local import LocalStore
from nearkin.search.store import Embeddings

pytest.importorskip("faiss")
DIM = 8


@pytest.fixture(params=["HNSW", "IVF"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalStore]:
    monkeypatch.setattr(vector_index, "EXACT_UP_TO", 300)
    monkeypatch.setattr(vector_index, "HNSW_UP_TO", 10**6 if request.param == "HNSW" else 0)
    monkeypatch.setattr(vector_index, "TRAIN_PER_CELL", 2)
    monkeypatch.setattr(vector_index, "TUNE_QUERIES", 200)
    opened = LocalStore(tmp_path, DIM)
    put(opened, 0, 1000)
    opened.finish()
    yield opened
    opened.close()


def vectors(start: int, end: int) -> Embeddings:
    return np.random.default_rng(0).standard_normal((3000, DIM)).astype(np.float32)[start:end]


def put(store: LocalStore, start: int, end: int) -> None:
    store.put([Entry(f"/{n}", str(n % 2), 1, 1) for n in range(start, end)], vectors(start, end))


def share_found(store: LocalStore, queries: Embeddings, k: int = 10) -> float:
    """Recall of the true nearest; every returned distance must be exact."""
    places = {id: place for place, id in enumerate(store.entries())}
    kept = store.vectors(list(places)).astype(float)
    right = 0
    for query, hits in zip(queries, store.search(queries, k), strict=True):
        distances = np.linalg.norm(kept - query, axis=1)
        assert len(hits) == k
        assert [hit.distance for hit in hits] == sorted(hit.distance for hit in hits)
        assert np.allclose([hit.distance for hit in hits], [distances[places[hit.id]] for hit in hits], atol=1e-5)
        right += sum(hit.distance <= np.sort(distances)[k - 1] + 1e-5 for hit in hits)
    return right / (k * len(queries))


def used(store: LocalStore) -> bool:
    return store._approximate_index() is not None


def test_recall_is_high_and_reported(store: LocalStore) -> None:
    said = store.finish()
    kind = "HNSW" if vector_index.HNSW_UP_TO else "IVF"
    assert said.startswith(f"1,000 items are searched with {kind} (")
    assert "% of the 10 nearest, " in said and said.endswith(" times as fast as exact search.")
    told = float(said.split("it finds ")[1].split("%")[0]) / 100
    assert used(store)
    assert told >= 0.95
    assert share_found(store, vectors(0, 300)) == pytest.approx(told, abs=0.03)


def test_the_index_is_tuned_again_only_after_a_change(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned = []
    tune = vector_index.ApproximateIndex.tune
    monkeypatch.setattr(vector_index.ApproximateIndex, "tune", lambda *all_of_it: tuned.append(1) or tune(*all_of_it))
    said = store.finish()
    store.close()
    again = LocalStore(tmp_path, DIM)
    assert again.finish() == said and not tuned
    for times, change in enumerate((lambda: again.remove([1]), lambda: put(again, 0, 1), lambda: put(again, 5, 6)), 1):
        change()
        again.finish()
        assert again.finish() == again.finish() and len(tuned) == times
    (tmp_path / "approximate.json").write_text("{")
    again.finish()
    assert len(tuned) == 4
    again.close()


def test_removed_and_replaced_items_are_never_found(store: LocalStore) -> None:
    query = vectors(0, 1)
    nearest = [hit.id for hit in store.search(query, 60)[0]]
    store.remove(nearest[:50])
    put(store, int(store.entries()[nearest[50]].path[1:]), int(store.entries()[nearest[50]].path[1:]) + 1)
    hits = store.search(query, 5)[0]
    assert used(store)
    assert not {hit.id for hit in hits} & set(nearest[:51])
    assert share_found(store, query, 5) >= 0.8


def test_items_added_after_the_build_are_found(store: LocalStore) -> None:
    put(store, 1000, 1050)
    for n, hits in enumerate(store.search(vectors(1000, 1050), 3), 1000):
        assert (hits[0].entry.path, hits[0].distance) == (f"/{n}", 0.0)
    assert used(store)
    assert share_found(store, vectors(990, 1050)) >= 0.95


def test_the_index_is_rebuilt_after_a_tenth_has_changed(store: LocalStore, tmp_path: Path) -> None:
    def built_of() -> int:
        index = vector_index.ApproximateIndex.load(tmp_path / "approximate.faiss", DIM)
        assert index is not None
        return len(index)

    put(store, 1000, 1050)
    store.remove(list(store.entries())[:50])
    store.finish()
    assert built_of() == 1000
    put(store, 1050, 1060)
    store.finish()
    assert built_of() == 1010
    assert share_found(store, vectors(900, 1060)) >= 0.95


@pytest.mark.usefixtures("store")
def test_a_length_in_the_file_cannot_reserve_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "approximate.faiss"
    content = file.read_bytes()
    ids = 8 * 1000  # bytes, at the end; before them comes their number
    file.write_bytes(content[: -8 - ids] + struct.pack("<Q", 2**28) + content[-ids:])
    reset_peak()
    before = peak_of(os.getpid())
    assert vector_index.ApproximateIndex.load(file, DIM) is None and "is damaged" in caplog.text
    assert peak_of(os.getpid()) < before + 500  # megabytes; the ids would take 2,048


def test_a_reader_loads_a_new_index(store: LocalStore, tmp_path: Path) -> None:
    reader = LocalStore(tmp_path, DIM)
    assert len(reader._approximate_index() or ()) == 1000
    put(store, 1000, 1500)
    store.finish()
    assert len(reader._approximate_index() or ()) == 1500
    assert share_found(reader, vectors(900, 1000)) >= 0.95
    reader.close()


def test_a_label_is_searched_exactly(store: LocalStore) -> None:
    query = vectors(2000, 2001)
    distances = np.linalg.norm(vectors(0, 1000)[1::2].astype(float) - query, axis=1)
    hits = store.search(query, 20, label="1")[0]
    assert {hit.entry.label for hit in hits} == {"1"}
    assert np.allclose([hit.distance for hit in hits], np.sort(distances)[:20], atol=1e-5)


def test_a_very_large_k_is_searched_exactly(store: LocalStore) -> None:
    assert share_found(store, vectors(0, 3), 999) == 1


@pytest.mark.parametrize("harm", ["missing", "cut", "rubbish", "no faiss"])
def test_an_unusable_index_gives_a_warning_and_exact_search(
    store: LocalStore, harm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "approximate.faiss"
    if harm == "missing":
        file.unlink()
    elif harm == "no faiss":
        monkeypatch.setattr(vector_index, "available", lambda: False)
        os.utime(file, ns=(1, 1))
    else:
        file.write_bytes(file.read_bytes()[:5000] if harm == "cut" else b"rubbish" * 100)
    assert share_found(store, vectors(0, 20)) == share_found(store, vectors(20, 40)) == 1
    assert [record.message.startswith("searching exactly") for record in caplog.records] == [True]
    said = store.finish()
    assert "pip install 'nearkin[search]'" in said if harm == "no faiss" else used(store)


@pytest.mark.usefixtures("store")
def test_the_index_of_another_gallery_is_detected(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    other = LocalStore(tmp_path / "other", DIM)
    other.put([Entry(f"/{n}", "", 1, 1) for n in range(1000)], vectors(1000, 2000))
    shutil.copy(tmp_path / "approximate.faiss", tmp_path / "other")
    assert share_found(other, vectors(0, 20)) == 1
    assert "does not match the gallery's items" in caplog.text
    other.finish()
    assert used(other)
    assert share_found(other, vectors(0, 20)) >= 0.9
    other.close()


def test_it_works_with_packages_that_patch_faiss_for_torch() -> None:
    """pytorch-metric-learning imports such a patch. It cannot be undone, hence a separate process."""
    code = """
import faiss, faiss.contrib.torch_utils, numpy as np
from nearkin.search.vector_index import ApproximateIndex
eye = np.eye(3, dtype=np.float32)
print(ApproximateIndex.build(3, eye, [(np.arange(3), eye)]).candidates(eye[1:2], 1)[1].tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[[1]]\n", done.stderr


def test_an_index_reports_its_own_number_of_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_index, "LINKS", 5)
    index = vector_index.ApproximateIndex.build(20, vectors(0, 1), [(np.arange(20), vectors(0, 20))])
    monkeypatch.setattr(vector_index, "LINKS", 9)  # as if a later version used another number
    assert str(index).startswith("HNSW (5 links,")


def test_recall_is_right_for_galleries_with_tiny_distances() -> None:
    small = vectors(0, 500) * np.float32(1e-7)
    limits = vector_index._limits(small[:20], [(np.arange(300), small[:300]), (np.arange(300, 500), small[300:])])[0]
    distances = np.sort(np.linalg.norm(small.astype(float)[:20, None] - small.astype(float), axis=2), axis=1)
    assert limits == pytest.approx(distances[:, vector_index.TUNE_K].tolist(), rel=1e-5)
    assert all(distances[:, vector_index.TUNE_K] <= limits)
    assert all(distances[:, vector_index.TUNE_K + 1] > limits)


def test_the_limit_of_other_indexes_in_this_process_does_not_change(store: LocalStore) -> None:
    import faiss

    before = faiss.get_deserialization_vector_byte_limit()
    assert vector_index.ApproximateIndex.load(store._index_path, DIM) is not None
    assert faiss.get_deserialization_vector_byte_limit() == before
