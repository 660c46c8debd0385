import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import AgglomerativeClustering

from nearkin.clustering import facility_location, kmeans, spectral_partition
from nearkin.clustering.cluster import HOW, cluster
from nearkin.errors import UserError


def blobs(k, per_blob, seed=0):
    """(k * per_blob, k + 1) points around k distant orthogonal centres, blob by blob, which every algorithm finds."""
    rng = np.random.default_rng(seed)
    return np.repeat(100 * np.eye(k, k + 1), per_blob, axis=0) + rng.normal(size=(k * per_blob, k + 1))


def same_groups(first, second):
    """Whether two clusterings are the same up to the numbers of the clusters."""
    return np.array_equal(first[:, None] == first, second[:, None] == second)


@pytest.mark.parametrize("how", HOW)
@settings(deadline=None, max_examples=30)
@given(k=st.integers(1, 6), per_blob=st.integers(12, 20), seed=st.integers(0, 5))
def test_finds_separated_blobs_in_whatever_order_they_come(how, k, per_blob, seed):
    truth = np.repeat(np.arange(k), per_blob)
    order = np.random.default_rng(seed).permutation(len(truth))
    found = cluster(blobs(k, per_blob, seed)[order], k, how, seed)
    assert found.dtype == np.int64
    assert set(found.tolist()) == set(range(k))
    assert same_groups(found, truth[order])


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("k", [1, 2, 7, 30])
def test_distinct_points_make_k_clusters(how, k):
    points = np.random.default_rng(k).normal(size=(30, 2))
    if how == "spectral" and k == 30:
        points = np.stack([np.cos(np.arange(30)), np.sin(np.arange(30))], 1)  # it separates only directions
    assert set(cluster(points, k, how).tolist()) == set(range(k))


def test_it_equals_the_functions_behind_it():
    points = np.random.default_rng(0).normal(size=(60, 3))
    x = torch.from_numpy(points)
    medoids = facility_location(torch.cdist(x, x), torch.zeros(60, dtype=torch.int64), 5, gamma=0.0)
    expected = {
        "kmeans": kmeans(x, 5, seed=3).assignment,
        "spectral": spectral_partition(x, 5, seed=3).assignment,
        "medoids": medoids.assignment,
        "agglomerative": AgglomerativeClustering(5).fit_predict(points),
    }
    assert expected.keys() == HOW.keys()
    for how, groups in expected.items():
        np.testing.assert_array_equal(cluster(points, 5, how, seed=3), groups)


def test_every_point_is_with_its_nearest_medoid_and_no_exchange_within_a_cluster_helps():
    points = np.random.default_rng(1).normal(size=(40, 2))
    found = cluster(points, 4, "medoids")
    distances = np.linalg.norm(points[:, None] - points, axis=2)
    medoids = [
        min(np.flatnonzero(found == group), key=lambda i, group=group: distances[i, found == group].sum())
        for group in range(4)
    ]
    np.testing.assert_array_equal(found, distances[:, medoids].argmin(1))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    "form",
    [
        lambda points: points.tolist(),
        lambda points: points.astype(np.float32),
        lambda points: points.round().astype(int),
        lambda points: torch.from_numpy(points).half(),
        lambda points: torch.from_numpy(points).requires_grad_(),
        lambda points: points[:, ::-1],
    ],
)
def test_takes_lists_arrays_and_tensors(how, form):
    assert same_groups(cluster(form(blobs(3, 10)), 3, how), np.repeat(np.arange(3), 10))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    ("points", "k", "sentence"),
    [
        (np.zeros((3, 2)), 4, "k must be an integer from 1 to 3"),
        (np.zeros((3, 2)), 0, "k must be an integer from 1 to 3"),
        (np.zeros((3, 2)), 1.5, "k must be an integer from 1 to 3"),
        (np.zeros((3, 2)), np.nan, "k must be an integer from 1 to 3"),
        (np.zeros((3, 2)), None, "k must be an integer from 1 to 3, the number of embeddings, got None"),
        (np.zeros((3, 2)), "3", "k must be an integer from 1 to 3, the number of embeddings, got '3'"),
        (np.zeros((3, 2)), True, "k must be an integer from 1 to 3, the number of embeddings, got True"),
        (np.zeros(3), 1, r"shape \(n, dim\)"),
        (np.zeros((0, 2)), 1, r"shape \(n, dim\)"),
        (np.array([["a"], ["b"]]), 1, "must be numbers"),
        ([[0.0], [np.nan], [np.inf]], 2, "2 of 3 embeddings contain NaN or infinite values"),
    ],
)
def test_invalid_input_is_refused_with_the_reason(how, points, k, sentence):
    with pytest.raises(UserError, match=sentence):
        cluster(points, k, how)


def test_an_unknown_algorithm_suggests_the_nearest_known_one():
    with pytest.raises(UserError, match="did you mean 'kmeans'"):
        cluster(np.zeros((3, 2)), 2, "k-means")


@pytest.mark.parametrize("how", HOW)
def test_equal_points_and_a_single_point_are_accepted(how):
    assert cluster(np.ones((1, 2)), 1, how).tolist() == [0]
    assert cluster(np.ones((5, 2)), 1, how).tolist() == [0] * 5
    assert set(cluster(np.ones((5, 2)), 3, how).tolist()) <= {0, 1, 2}
