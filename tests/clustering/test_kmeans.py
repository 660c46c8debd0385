import itertools
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.spaces import DEVICES, difficult_points, three_tight_groups

from nearkin.clustering import kmeans
from nearkin.clustering.kmeans import _draw, _fill_empty, _start
from nearkin.errors import UserError


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def blobs(k, per_blob, dim=4, seed=0):
    centres = torch.eye(k, dim) * 100 if k <= dim else random(k, dim, seed=seed) * 1000
    return centres.repeat_interleave(per_blob, 0) + random(k * per_blob, dim, seed=seed + 1)


@pytest.mark.parametrize("k", [1, 4, 40, 300])
def test_recovers_well_separated_blobs(k):
    result = kmeans(blobs(k, 5), k)
    groups = result.assignment.reshape(k, 5)
    assert (groups == groups[:, :1]).all()
    assert len(groups[:, 0].unique()) == k


def test_result_is_consistent_with_itself():
    x = random(200, 5)
    result = kmeans(x, 12)
    squares = (x[:, None] - result.centroids).square().sum(2)
    assert torch.equal(result.assignment, squares.argmin(1))
    assert result.inertia == pytest.approx(squares.min(1).values.sum().item(), rel=1e-5)
    for cluster in range(12):
        torch.testing.assert_close(result.centroids[cluster], x[result.assignment == cluster].mean(0))


def test_inertia_never_increases():
    inertias = []
    kmeans(random(500, 8), 40, after_each=inertias.append)
    assert len(inertias) > 3
    assert all(after <= before * (1 + 1e-6) for before, after in itertools.pairwise(inertias))


def test_fewer_iterations_stop_earlier():
    inertias = []
    result = kmeans(random(500, 8), 40, iterations=2, after_each=inertias.append)
    assert len(inertias) == 2
    assert result.inertia == inertias[-1]


def test_same_seed_same_clusters():
    x = random(300, 6)
    first, second, other = kmeans(x, 150, seed=3), kmeans(x, 150, seed=3), kmeans(x, 150, seed=4)
    assert torch.equal(first.assignment, second.assignment)
    assert torch.equal(first.centroids, second.centroids)
    assert not torch.equal(first.assignment, other.assignment)


def test_global_random_state_is_left_alone():
    state = torch.get_rng_state()
    kmeans(random(50, 2), 5)
    assert torch.equal(torch.get_rng_state(), state)


def test_as_good_as_scikit_learn():
    from sklearn.cluster import KMeans

    x = random(600, 8)
    for k in (10, 200):
        theirs = KMeans(k, n_init=5, random_state=0).fit(x.numpy()).inertia_
        ours = min(kmeans(x, k, seed=seed).inertia for seed in range(5))
        assert ours <= 1.02 * theirs


def test_farthest_points_fill_the_empty_clusters():
    assignment = torch.tensor([0, 0, 0, 2, 2])
    filled = _fill_empty(assignment, torch.tensor([0.1, 5.0, 0.3, 4.0, 0.0]), k=4)
    assert filled.tolist() == [0, 1, 0, 3, 2]


def test_a_cluster_that_becomes_empty_is_filled_again(monkeypatch):
    # From these starting rows plain Lloyd loses a cluster in its second iteration.
    x = torch.tensor([[11, 1], [7, 5], [10, 1], [6, 5], [7, 10], [11, 2], [3, 11], [4, 0]]).float()
    monkeypatch.setattr(sys.modules["nearkin.clustering.kmeans"], "_start", lambda *_: torch.tensor([5, 7, 2, 6]))
    assert len(kmeans(x, 4).assignment.unique()) == 4


def test_points_on_their_centroid_are_not_moved():
    assignment = torch.tensor([0, 0, 2])
    assert _fill_empty(assignment, torch.zeros(3), k=4).tolist() == [0, 0, 2]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_cluster_is_empty_while_distinct_points_are_left(data):
    n = data.draw(st.integers(1, 25))
    x = torch.tensor(data.draw(st.lists(st.integers(-3, 3), min_size=n, max_size=n))).float()[:, None]
    k = data.draw(st.integers(1, n))
    result = kmeans(x, k, seed=data.draw(st.integers(0, 5)))
    distinct = len(x.unique())
    assert len(result.assignment.unique()) == min(k, distinct)
    assert result.centroids.isfinite().all()
    if k >= distinct:
        assert result.inertia == 0


def test_as_many_clusters_as_points():
    x = random(150, 3)
    result = kmeans(x, 150)
    assert result.inertia == 0
    assert sorted(result.assignment.tolist()) == list(range(150))


def test_far_from_the_origin_blobs_are_still_found():
    x = blobs(3, 20) * 1e-3 + 50
    groups = kmeans(x, 3).assignment.reshape(3, 20)
    assert (groups == groups[:, :1]).all()


@pytest.mark.parametrize("device", DEVICES)
def test_classes_within_tight_groups_are_found(device):
    x, labels = three_tight_groups()
    found = kmeans(x.to(device), 60).assignment.cpu()
    pairs = torch.stack([found, labels]).unique(dim=1)
    assert pairs.shape[1] == len(found.unique()) == 60


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=60, deadline=None)
@given(x=difficult_points(), k=st.integers(1, 6))
def test_every_point_of_a_difficult_space_has_its_nearest_centroid(device, x, k):
    result = kmeans(x.to(device), min(k, len(x)), iterations=3)
    scale = 2.0**80 if x.abs().max() < 1e-5 else 1.0
    to_all = torch.cdist(
        x.double() * scale, result.centroids.double().cpu() * scale, compute_mode="donot_use_mm_for_euclid_dist"
    )
    least, lowest = to_all.min(1)
    own = to_all.gather(1, result.assignment.cpu()[:, None])[:, 0]
    assert (own <= least * (1 + 1e-14)).all()
    assert (result.assignment.cpu() <= lowest)[own == least].all()


def test_starting_rows_are_distinct_also_when_drawn_many_at_once():
    rows = _start(random(1500, 4), 1000, torch.Generator().manual_seed(0))
    assert len(rows.unique()) == 1000


def test_draws_follow_the_weights():
    generator = torch.Generator().manual_seed(0)
    weights = torch.tensor([1.0, 0.0, 3.0])
    first = torch.stack([_draw(weights, 2, generator)[0] for _ in range(4000)])
    assert (first == 1).sum() == 0
    assert (first == 2).double().mean().item() == pytest.approx(0.75, abs=0.03)


def test_spherical_result_is_consistent_with_itself():
    x = random(200, 5) * random(200, 1, seed=1).exp()
    result = kmeans(x, 12, spherical=True)
    directions = x / x.norm(dim=1, keepdim=True)
    cosines = directions @ result.centroids.T
    assert torch.equal(result.assignment, cosines.argmax(1))
    assert result.inertia == pytest.approx((2 - 2 * cosines.max(1).values).sum().item(), rel=1e-4)
    for cluster in range(12):
        total = directions[result.assignment == cluster].sum(0)
        torch.testing.assert_close(result.centroids[cluster], total / total.norm())


def test_spherical_clusters_do_not_depend_on_the_lengths_of_the_points():
    x = random(100, 4)
    expected = kmeans(x, 7, spherical=True)
    lengths = torch.tensor([2.0**-100, 1.0, 2.0**100]).repeat(34)[:100, None]
    found = kmeans(x * lengths, 7, spherical=True)
    assert torch.equal(found.assignment, expected.assignment)
    assert found.inertia == pytest.approx(expected.inertia)


def test_spherical_inertia_never_increases():
    inertias = []
    kmeans(random(500, 8), 40, after_each=inertias.append, spherical=True)
    assert len(inertias) > 3
    assert all(after <= before * (1 + 1e-6) for before, after in itertools.pairwise(inertias))


def test_zero_vectors_do_not_change_spherical_centroids():
    x = torch.cat([blobs(3, 10), torch.zeros(4, 4)])
    result = kmeans(x, 3, spherical=True)
    torch.testing.assert_close(result.centroids.norm(dim=1), torch.ones(3))
    assert result.inertia == pytest.approx(kmeans(x[:30], 3, spherical=True).inertia + 4, rel=1e-5)
    assert kmeans(torch.zeros(3, 2), 2, spherical=True).inertia == 0


def test_opposite_points_that_cancel_leave_the_spherical_centroid_on_the_sphere():
    result = kmeans(torch.tensor([[3.0, 0.0], [-1.0, 0.0]]), 1, spherical=True)
    assert result.centroids.norm().item() == 1
    assert result.inertia == 4


@pytest.mark.parametrize("k", [0, 6])
def test_more_clusters_than_points_is_a_clear_error(k):
    with pytest.raises(UserError, match=f"k must be from 1 to 5, the number of points, got {k}"):
        kmeans(random(5, 2), k)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_cuda_the_clusters_are_as_good():
    x = random(2000, 8)
    assert kmeans(x.cuda(), 200).inertia == pytest.approx(kmeans(x, 200).inertia, rel=0.02)
    groups = kmeans(blobs(40, 5).cuda(), 40).assignment.reshape(40, 5)
    assert (groups == groups[:, :1]).all()
