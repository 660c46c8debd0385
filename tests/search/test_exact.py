"""Exact search of all kinds of vectors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.retrieval import nearest
from reference.spaces import difficult_points, three_tight_groups

from nearkin.search.vector_index import ExactIndex


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_exact_search_of_difficult_vectors_matches_float64(data: st.DataObject) -> None:
    vectors = data.draw(difficult_points()).float().numpy()
    k = data.draw(st.integers(1, len(vectors)))
    distances, found = ExactIndex(np.arange(len(vectors)) * 2 + 5, vectors).nearest(vectors, k)
    expected, rows = nearest(vectors.astype(float), vectors.astype(float), k, [-1] * len(vectors))
    assert np.array_equal(found, rows * 2 + 5)
    assert np.allclose(distances, expected, rtol=1e-6, atol=0)


def test_exact_search_separates_vectors_of_tight_groups() -> None:
    vectors = three_tight_groups()[0].numpy()
    slow = np.linalg.norm(vectors.astype(float)[:, None] - vectors.astype(float), axis=2)
    for at_once in (1, 600):
        queries = vectors[:at_once]
        found = ExactIndex(np.arange(600), vectors).nearest(queries, 4)[1]
        assert np.array_equal(found, slow[:at_once].argsort(1)[:, :4])


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_a_prepared_index_finds_the_same_neighbours(offset: float) -> None:
    rng = np.random.default_rng(0)
    vectors = (rng.integers(-3, 4, (2000, 4)) / 4 + offset).astype(np.float32)  # with many ties
    queries = (rng.standard_normal((7, 4)) + offset).astype(np.float32)
    ids = np.sort(rng.permutation(10_000)[:2000])
    distances, found = ExactIndex(ids, vectors).nearest(queries, 5)
    slow = np.linalg.norm(vectors.astype(float) - queries[:, None].astype(float), axis=2)
    assert np.allclose(distances, np.sort(slow, 1)[:, :5], atol=1e-4)
    assert np.allclose(np.take_along_axis(slow, np.searchsorted(ids, found), 1), distances, atol=1e-4)


def test_an_empty_index_finds_nothing() -> None:
    nothing = ExactIndex(np.empty(0, np.int64), np.empty((0, 3), np.float32))
    assert [part.shape for part in nothing.nearest(np.ones((2, 3), np.float32), 5)] == [(2, 0), (2, 0)]
