import numpy as np
import pytest
import torch
from reference.classification import soft_labels
from sklearn.neighbors import KNeighborsClassifier

from nearkin.errors import UserError
from nearkin.evaluation import error_rate, nearest_cluster_labels, soft_knn_labels


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def random_labels(n, classes, seed=0):
    return torch.randint(classes, (n,), generator=torch.Generator().manual_seed(seed)) * 5 - 10


@pytest.mark.parametrize("variance", [0.01, 0.5, 20.0])
@pytest.mark.parametrize("nearest", [1, 7, 128])
def test_nearest_clusters_vote_as_in_the_paper(variance, nearest):
    queries, centroids, labels = random(100, 3), random(40, 3, seed=1), random_labels(40, 6)
    found = nearest_cluster_labels(queries, centroids, labels, variance, nearest)
    arrays = (queries.double().numpy(), centroids.double().numpy(), labels.numpy())
    np.testing.assert_array_equal(found, soft_labels(*arrays, variance, nearest))


@pytest.mark.parametrize("neighbours", [3, 1000])
def test_items_vote_as_single_clusters_but_never_for_themselves(neighbours):
    x, labels = random(80, 2), random_labels(80, 4)
    own = torch.arange(80)
    own[::3] = -1
    squares = torch.cdist(x.double(), x.double()).square()
    squares[torch.arange(80)[own >= 0], own[own >= 0]] = torch.inf
    variance = squares.min(1).values.mean().item()
    found = soft_knn_labels(x, x, labels, neighbours=neighbours, exclude=own)
    expected = soft_labels(x.double().numpy(), x.double().numpy(), labels.numpy(), variance, neighbours, own.tolist())
    np.testing.assert_array_equal(found, expected)


def test_a_large_variance_makes_it_plain_nearest_neighbours():
    gallery, queries, labels = random(200, 4), random(60, 4, seed=1), random_labels(200, 3)
    expected = KNeighborsClassifier(9).fit(gallery.numpy(), labels.numpy()).predict(queries.numpy())
    np.testing.assert_array_equal(soft_knn_labels(queries, gallery, labels, 1e300, neighbours=9), expected)


@pytest.mark.parametrize("variance", [0.0, 1e-300, 1e-6])
def test_the_nearest_cluster_decides_for_a_far_query(variance):
    centroids, labels = torch.tensor([[0.0], [1.0], [1.5]]), torch.tensor([8, 3, 3])
    queries = torch.tensor([[-1000.0], [0.1], [1000.0]])
    assert nearest_cluster_labels(queries, centroids, labels, variance).tolist() == [8, 8, 3]


def test_equal_sums_go_to_the_lowest_label():
    centroids = torch.tensor([[-1.0], [1.0], [-2.0], [2.0]])
    for labels in ([9, 4, 9, 4], [4, 9, 4, 9], [9, 4, 4, 9], [9, 4, 5, 9]):
        winner = 9 if labels == [9, 4, 5, 9] else 4
        assert nearest_cluster_labels(torch.zeros(1, 1), centroids, torch.tensor(labels), 1.0).item() == winner


def test_coincident_items_need_no_variance():
    gallery, labels = torch.tensor([[1.0], [1.0], [1.0], [2.0]]), torch.tensor([6, 2, 6, 0])
    assert soft_knn_labels(torch.ones(2, 1), gallery, labels).tolist() == [6, 6]


def test_no_queries_get_no_labels():
    assert soft_knn_labels(random(0, 2), random(5, 2), random_labels(5, 2)).shape == (0,)
    assert nearest_cluster_labels(random(0, 2), random(5, 2), random_labels(5, 2), 1.0).shape == (0,)


def test_error_rate_is_the_share_of_wrong_labels():
    assert error_rate(torch.tensor([1, 2, 3]), torch.tensor([1, 0, 0])) == pytest.approx(2 / 3)


def test_wrong_input_is_a_clear_error():
    x, labels = random(4, 2), torch.arange(4)
    with pytest.raises(UserError, match=r"variance must be a finite number >= 0, got -1\.0"):
        nearest_cluster_labels(x, x, labels, -1.0)
    with pytest.raises(UserError, match=r"variance must be .* got nan"):
        soft_knn_labels(x, x, labels, float("nan"))
    with pytest.raises(UserError, match=r"labels must have shape \(4,\), one per vector, got \(3,\)"):
        soft_knn_labels(x, x, labels[:3])
    with pytest.raises(UserError, match=r"k must be from 1 to 4.*, got 0"):
        nearest_cluster_labels(x, x, labels, 1.0, nearest=0)
    with pytest.raises(UserError, match=r"got \(4,\) and \(3,\)"):
        error_rate(labels, labels[:3])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_cuda_the_labels_are_the_same():
    queries, gallery, labels = random(100, 3), random(400, 3, seed=1), random_labels(400, 6)
    found = soft_knn_labels(queries.cuda(), gallery.cuda(), labels)
    assert torch.equal(found.cpu(), soft_knn_labels(queries, gallery, labels))
