import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.grouped_kmeans import fewest_by_bic, inertia_per_group, squares_within_group

from nearkin.clustering import choose_clusters, grouped_kmeans, kmeans_per_group
from nearkin.clustering.distances import row_blocks
from nearkin.clustering.grouped_kmeans import _fill_empty, _first_largest
from nearkin.errors import UserError


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def random_groups(n, groups, seed=0):
    return torch.randint(groups, (n,), generator=torch.Generator().manual_seed(seed)) * 7 - 20


def check_is_fixed_point(x, groups, found, rtol=1e-5):
    """Each item has the nearest centroid of its group, centroids are means, no cluster is empty, inertias add up."""
    squares = squares_within_group(x.numpy(), groups.numpy(), found.centroids.numpy(), found.group_of.numpy())
    own = np.take_along_axis(squares, found.assignment.numpy()[:, None], 1)[:, 0]
    np.testing.assert_allclose(own, squares.min(1), rtol=rtol, atol=1e-9)
    for cluster, centroid in enumerate(found.centroids):
        members = x[found.assignment == cluster]
        assert len(members) > 0
        torch.testing.assert_close(centroid, members.mean(0), rtol=1e-5, atol=1e-5)
    assert found.group_of.tolist() == sorted(found.group_of.tolist())
    expected = [own[groups.numpy() == group].sum() for group in np.unique(groups.numpy())]
    np.testing.assert_allclose(found.inertia, expected, rtol=1e-6, atol=1e-9)


def test_result_is_a_fixed_point_of_lloyd_within_every_group():
    x, groups = random(300, 4), random_groups(300, 9)
    found = kmeans_per_group(x, groups, 4)
    check_is_fixed_point(x, groups, found)
    assert torch.equal(found.group_of[found.assignment], groups)
    assert torch.equal(found.group_of.unique(return_counts=True)[1], torch.full((9,), 4))
    assert found.inertia.dtype == torch.float64


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_every_group_gets_as_many_clusters_as_it_has_distinct_points_and_at_most_k(data):
    n = data.draw(st.integers(1, 30))
    x = torch.tensor(data.draw(st.lists(st.integers(-3, 3), min_size=n, max_size=n))).float()[:, None]
    groups = torch.tensor(data.draw(st.lists(st.sampled_from([-5, 0, 3, 10**12]), min_size=n, max_size=n)))
    ids = groups.unique()
    k = torch.tensor(data.draw(st.lists(st.integers(1, 6), min_size=len(ids), max_size=len(ids))))
    found = kmeans_per_group(x, groups, k, seed=data.draw(st.integers(-2, 5)))
    distinct = torch.tensor([len(x[groups == group].unique()) for group in ids])
    assert torch.equal(found.group_of, ids.repeat_interleave(torch.minimum(k, distinct)))
    check_is_fixed_point(x, groups, found)
    assert (found.inertia[k >= distinct] == 0).all()


@pytest.mark.parametrize("k", [2, 8])
def test_as_good_as_a_loop_over_groups(k):
    x, groups = random(2000, 8), random_groups(2000, 50)
    ours = np.mean([kmeans_per_group(x, groups, k, seed).inertia.mean() for seed in range(3)])
    theirs = np.mean([inertia_per_group(x.numpy(), groups.numpy(), k, seed=seed).mean() for seed in range(3)])
    assert ours <= 1.01 * theirs


def test_well_separated_blobs_are_found_in_every_group():
    blob = torch.arange(600) % 3
    groups = torch.arange(600) // 30
    x = 100 * torch.eye(3, 4)[blob] + random(600, 4) + 1000 * groups[:, None]
    found = kmeans_per_group(x, groups, 3).assignment.reshape(20, 10, 3)
    assert (found == found[:, :1]).all()
    assert len(found[:, 0].unique()) == 60


def test_a_group_does_not_depend_on_the_other_groups():
    x, groups = random(400, 4), random_groups(400, 6)
    k = torch.tensor([1, 5, 3, 2, 4, 6])
    together = kmeans_per_group(x, groups, k, seed=3)
    for group, clusters, inertia in zip(groups.unique(), k.tolist(), together.inertia, strict=True):
        alone = kmeans_per_group(x[groups == group], groups[groups == group], clusters, seed=3)
        assert torch.equal(alone.centroids, together.centroids[together.group_of == group])
        torch.testing.assert_close(alone.inertia[0], inertia)


def test_the_seed_decides_the_start_and_the_global_random_state_is_left_alone():
    x, groups, state = random(300, 4), random_groups(300, 3), torch.get_rng_state()
    first, second, other = (kmeans_per_group(x, groups, 9, seed) for seed in (1, 1, 2))
    assert torch.equal(first.assignment, second.assignment)
    assert torch.equal(first.centroids, second.centroids)
    assert not torch.equal(first.assignment, other.assignment)
    assert torch.equal(torch.get_rng_state(), state)


def test_blocks_change_nothing(monkeypatch):
    x, groups = random(200, 4), random_groups(200, 5)
    expected = kmeans_per_group(x, groups, 3)
    monkeypatch.setattr(grouped_kmeans, "row_blocks", lambda rows, columns: row_blocks(rows, columns, 500))
    found = kmeans_per_group(x, groups, 3)
    assert torch.equal(found.assignment, expected.assignment)
    torch.testing.assert_close(found.inertia, expected.inertia)


@pytest.mark.parametrize("iterations", [1, 2])
def test_stopped_early_centroids_are_still_means_and_no_cluster_is_empty(iterations):
    x, groups = random(300, 4), random_groups(300, 3)
    found = kmeans_per_group(x, groups, 9, iterations=iterations)
    assert found.inertia.sum() > kmeans_per_group(x, groups, 9).inertia.sum()
    for cluster, centroid in enumerate(found.centroids):
        torch.testing.assert_close(centroid, x[found.assignment == cluster].mean(0))


def test_a_cluster_that_becomes_empty_is_filled_again(monkeypatch):
    # From these starting rows plain Lloyd loses a cluster in its second iteration.
    x = torch.tensor([[11, 1], [7, 5], [10, 1], [6, 5], [7, 10], [11, 2], [3, 11], [4, 0]]).float()
    monkeypatch.setattr(grouped_kmeans, "_start", lambda *_: torch.tensor([5, 7, 2, 6]))
    found = kmeans_per_group(x, torch.zeros(8, dtype=torch.long), 4)
    assert len(found.assignment.unique()) == 4
    check_is_fixed_point(x, torch.zeros(8, dtype=torch.long), found)


def test_empty_clusters_get_the_farthest_item_of_their_group_that_is_not_alone():
    # Clusters 1 and 2 of group 0 are empty, and 6 of group 2, where the farthest item is alone; group 1 is not here.
    cluster = torch.tensor([0, 0, 0, 4, 4, 5])
    squares = torch.tensor([1.0, 3.0, 2.0, 0.0, 0.1, 9.0]).double()
    group, counts = torch.tensor([0, 0, 0, 2, 2, 2]), torch.tensor([3, 1, 3])
    assert _fill_empty(cluster, squares, group, counts).tolist() == [0, 1, 2, 4, 6, 5]


def test_items_far_from_the_origin_are_told_apart():
    x = (random(40, 2) * 1e-3).round(decimals=4) + 1000
    groups = torch.arange(40) % 4
    check_is_fixed_point(x, groups, kmeans_per_group(x, groups, 3))
    tiny = torch.tensor([[0.0], [1e-30], [3e30], [3e30]])
    assert kmeans_per_group(tiny, torch.tensor([0, 0, 1, 1]), 2).group_of.tolist() == [0, 0, 1]


def test_first_of_the_largest_in_each_segment():
    values, segment = torch.tensor([1.0, 5.0, 5.0, -2.0, 4.0]), torch.tensor([0, 0, 0, 2, 0])
    assert _first_largest(values, segment, 3).tolist() == [1, 5, 3]


@pytest.mark.parametrize("k", [0, torch.tensor([1, 2]), torch.tensor([1, 0, 2]), torch.tensor([1.0, 2.0, 3.0])])
def test_impossible_numbers_of_clusters_are_a_clear_error(k):
    with pytest.raises(UserError, match="k must be an integer >= 1, or one for each of the 3 groups"):
        kmeans_per_group(random(6, 2), torch.tensor([0, 1, 2, 0, 1, 2]), k)


def test_wrong_items_and_groups_are_a_clear_error():
    with pytest.raises(UserError, match=r"got \(4, 2\) and \(3,\)"):
        kmeans_per_group(random(4, 2), torch.zeros(3, dtype=torch.long), 1)
    with pytest.raises(UserError, match="integers"):
        kmeans_per_group(random(4, 2), torch.zeros(4), 1)
    with pytest.raises(UserError, match="NaN"):
        kmeans_per_group(random(4, 2) / 0, torch.zeros(4, dtype=torch.long), 1)


@pytest.mark.parametrize("dim", [1, 2, 8])
def test_the_number_of_clusters_has_the_least_bic(dim):
    sizes = [1, 2, 3, 5, 12, 40] * 20
    groups = torch.arange(120).repeat_interleave(torch.tensor(sizes)) * 3 - 5
    x = random(len(groups), dim) + 4 * random(3, dim, seed=1)[torch.arange(len(groups)) % 3]
    found = [kmeans_per_group(x, groups, k) for k in range(1, 5)]
    expected = []
    for place, group in enumerate(groups.unique()):
        members = [each.assignment[groups == group].unique(return_counts=True)[1].tolist() for each in found]
        expected.append(fewest_by_bic([each.inertia[place].item() for each in found], members, dim))
    assert len(set(expected)) >= 3
    assert choose_clusters(x, groups, 4).tolist() == expected


def test_groups_of_one_and_of_three_blobs_are_told_apart():
    groups = torch.arange(1200) // 60
    blob = torch.where(groups % 2 == 0, 0, torch.arange(1200) % 3)
    x = random(1200, 32) + 10 * torch.eye(3, 32)[blob]
    assert choose_clusters(x, groups, 6).tolist() == [1, 3] * 10


def test_groups_without_spread_get_the_fewest_clusters_that_fit_exactly():
    x = torch.tensor([[1.0], [2.0], [2.0], [2.0], [5.0], [6.0], [5.0], [6.0], [7.0], [9.0]])
    groups = torch.tensor([0, 1, 1, 1, 2, 2, 2, 2, 3, 3])
    assert choose_clusters(x, groups, 4).tolist() == [1, 1, 2, 1]
    assert choose_clusters(x, groups, 1).tolist() == [1, 1, 1, 1]
    with pytest.raises(UserError, match="most must be at least 1, got 0"):
        choose_clusters(x, groups, 0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_cuda_the_clusters_are_the_same():
    x, groups = random(2000, 8), random_groups(2000, 50)
    here, there = kmeans_per_group(x, groups, 5), kmeans_per_group(x.cuda(), groups.cuda(), 5)
    assert there.assignment.is_cuda
    torch.testing.assert_close(there.inertia.cpu(), here.inertia, rtol=1e-2, atol=0)
    assert (there.assignment.cpu() == here.assignment).double().mean() > 0.99
