"""Matching: the vote of the nearest items and the threshold, compared with a slow double loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference import open_set
from reference.untrained import save_untrained

from nearkin.errors import UserError
from nearkin.search import matching, queries
from nearkin.search.gallery import Gallery
from nearkin.search.store import Entry


@pytest.fixture
def gallery(tmp_path: Path) -> Iterator[Gallery]:
    """An empty gallery of dimension four."""
    with closing(Gallery.create(tmp_path / "empty.index", save_untrained(tmp_path / "model"))) as opened:
        yield opened


def fill(gallery: Gallery, labels: list[str], vectors: np.ndarray) -> None:
    gallery.store.remove(list(gallery.store.entries()))
    entries = [Entry(f"/nowhere/{row}.jpg", label, row, 0) for row, label in enumerate(labels)]
    gallery.store.put(entries, vectors.astype(np.float32))


def blobs(labels: list[str], noise: float = 0.6, seed: int = 0, offset: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    _, classes = np.unique(labels, return_inverse=True)
    return (rng.normal(size=(len(labels), 4))[classes] + noise * rng.normal(size=(len(labels), 4)) + offset).astype(
        "f4"
    )


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    labels=st.lists(st.sampled_from(["rose", "tulip", "daisy", ""]), min_size=2, max_size=30),
    seed=st.integers(0, 99),
    false_accepts=st.sampled_from([0.0, 0.05, 0.29, 0.5, 0.9]),
    k=st.integers(1, 6),
    offset=st.sampled_from([0.0, 100.0]),
)
def test_calibration_matches_a_slow_double_loop(
    gallery: Gallery, labels: list[str], seed: int, false_accepts: float, k: int, offset: float
) -> None:
    labels += ["rose", "tulip"]
    vectors = blobs(labels, seed=seed, offset=offset)
    fill(gallery, labels, vectors)
    found = asdict(gallery.calibrate(false_accepts, k))
    expected = open_set.calibrate(vectors.astype(np.float64), labels, false_accepts, k)
    assert {name for name, value in found.items() if value is None} == {n for n, v in expected.items() if v is None}
    for name, value in expected.items():
        assert value is None or found[name] == pytest.approx(value, rel=1e-4), name


def test_at_most_the_given_share_of_unknown_images_is_accepted(gallery: Gallery) -> None:
    labels = [f"class{i % 10}" for i in range(100)]
    fill(gallery, labels, blobs(labels))
    shares = (0.0, 0.05, 0.2, 0.5)
    accepted = [gallery.calibrate(share) for share in shares]
    for calibration, share in zip(accepted, shares, strict=True):
        assert share - 0.01 <= calibration.false_accepts <= share  # mutual nearest neighbours are accepted together
    assert all(calibration.true_accepts is not None for calibration in accepted)
    assert sorted(calibration.threshold for calibration in accepted) == [each.threshold for each in accepted]


def test_queries_get_the_voted_label_or_none(gallery: Gallery) -> None:
    labels = [f"class{i % 5}" for i in range(40)] + [""] * 5
    vectors = blobs(labels)
    fill(gallery, labels, vectors)
    queries = np.concatenate([vectors + 0.1, 5 + np.zeros((1, 4))]).astype(np.float32)
    line = open_set.calibrate(vectors.astype(np.float64), labels, 0.2, 3)
    assert line["threshold"] is not None
    matches = gallery.match(queries, false_accepts=0.2, k=3)
    for query, found in zip(queries, matches, strict=True):
        near = open_set.nearest(vectors.astype(np.float64), query, list(range(45)), 3)
        winner, share, distance = open_set.vote(near, labels)
        assert found.label == (winner if distance <= line["threshold"] else None)
        assert (found.share, found.distance) == pytest.approx((share, distance), rel=1e-4)
        assert [hit.distance for hit in found.hits] == pytest.approx([d for d, _ in near], rel=1e-4)
    assert {match.label is None for match in matches} == {True, False}


def test_files_of_the_gallery_are_matched_as_well_as_calibration_promises(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = [f"class{i % 5}" for i in range(40)]
    vectors = blobs(labels, noise=2.0)
    fill(gallery, labels, vectors)
    monkeypatch.setattr(gallery.model, "encode", lambda _: vectors)
    monkeypatch.setattr(queries, "find_unreadable", lambda *_, **__: [])  # the files do not exist
    paths = [Path(entry.path) for entry in gallery.store.entries().values()]
    promised = gallery.calibrate(0.2, 3)
    found = [each.label for each in gallery.match(paths, 0.2, 3)]
    accepted = [label == truth for label, truth in zip(found, labels, strict=True) if label]
    assert (len(accepted) / 40, sum(accepted) / len(accepted)) == (promised.true_accepts, promised.accuracy)
    assert found != labels and [each.label for each in gallery.match(paths, 0.5, include_self=True)] == labels


def test_a_copy_of_an_item_of_the_gallery_gets_its_label(gallery: Gallery) -> None:
    labels = [f"class{i % 5}" for i in range(40)]
    vectors = blobs(labels, noise=2.0)
    fill(gallery, labels, vectors)
    assert [each.label for each in gallery.match(vectors)] == labels
    assert gallery.match(vectors[7]).label == labels[7]


def test_classes_of_single_items_have_no_true_accepts(gallery: Gallery) -> None:
    labels = ["rose", "tulip", "daisy"]
    fill(gallery, labels, blobs(labels))
    calibration = gallery.calibrate(0.5)
    assert calibration.true_accepts is None and calibration.accuracy is None
    assert calibration.false_accepts <= 0.5 and calibration.threshold > 0


def test_identical_images_in_two_classes_are_never_accepted(gallery: Gallery) -> None:
    fill(gallery, ["rose", "tulip"] * 3, np.ones((6, 4)))
    calibration = gallery.calibrate(0.1)
    assert calibration.threshold < 0 and calibration.true_accepts == 0 and calibration.accuracy is None


def test_a_large_gallery_is_calibrated_on_a_fixed_sample(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "ITEMS", 7)
    labels = [f"class{i % 5}" for i in range(40)]
    fill(gallery, labels, blobs(labels))
    first = gallery.calibrate()
    (gallery.path / "calibration.json").unlink()
    assert first.items == 7 and gallery.calibrate() == first


def test_the_calibration_is_cached_until_the_gallery_changes(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = [f"class{i % 5}" for i in range(40)]
    fill(gallery, labels, blobs(labels))
    computed = []
    slow = matching._calibrate
    monkeypatch.setattr(matching, "_calibrate", lambda *arguments: computed.append(1) or slow(*arguments))
    first = gallery.calibrate()
    assert gallery.calibrate() == first and len(computed) == 1
    gallery.calibrate(0.2)
    gallery.calibrate(0.2, k=1)
    assert len(computed) == 3
    fill(gallery, labels, blobs(labels, seed=1))
    changed = gallery.calibrate()
    assert len(computed) == 4 and changed != first


@pytest.mark.parametrize("content", [b"", b"[]", b'{"key": 3}', b"\xff"])
def test_a_damaged_calibration_is_computed_again(gallery: Gallery, content: bytes) -> None:
    labels = ["rose", "tulip"] * 5
    fill(gallery, labels, blobs(labels))
    first = gallery.calibrate()
    (gallery.path / "calibration.json").write_bytes(content)
    assert gallery.calibrate() == first


def test_a_read_only_gallery_can_be_matched(gallery: Gallery) -> None:
    labels = ["rose", "tulip"] * 5
    fill(gallery, labels, blobs(labels))
    (gallery.path / "calibration.json").mkdir()  # no file can replace a folder, not even for an administrator
    assert gallery.calibrate().items == 10


@pytest.mark.parametrize(
    ("labels", "reason"),
    [(["", ""], "has no labels"), ([], "has no labels"), (["rose", "rose", ""], "only one class, 'rose'")],
)
def test_a_gallery_without_two_classes_is_refused(gallery: Gallery, labels: list[str], reason: str) -> None:
    if labels:
        fill(gallery, labels, np.eye(4)[: len(labels)])
    with pytest.raises(UserError, match=f"{reason}; index images of two classes or more"):
        gallery.calibrate()


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_share_out_of_range_is_refused(gallery: Gallery, share: float) -> None:
    with pytest.raises(UserError, match="false_accepts must be >= 0 and < 1"):
        gallery.calibrate(share)


def test_a_vote_of_zero_items_is_refused(gallery: Gallery) -> None:
    with pytest.raises(UserError, match="k must be an integer >= 1, got 0"):
        gallery.match(np.zeros(4, np.float32), k=0)
