"""The scores equal those of scikit-learn and pytorch-metric-learning, for random and degenerate spaces.

They differ in the order of equal distances. nearkin takes the lowest row first. pytorch-metric-learning leaves it to
its search, so that its scores change with it; given nearkin's order they are the same. Its own search (float32) loses
neighbours far from the origin, where nearkin agrees with float64. scikit-learn's average precision ranks equal scores
together, as if their precision were that of the whole tie.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import CustomKNN
from sklearn.metrics import (
    adjusted_mutual_info_score,
    adjusted_rand_score,
    average_precision_score,
    normalized_mutual_info_score,
)
from sklearn.metrics.cluster import pair_confusion_matrix
from sklearn.neighbors import NearestNeighbors

from nearkin.clustering import nearest_neighbours
from nearkin.errors import UserError
from nearkin.evaluation import cluster_scores, evaluate, find_clusters, retrieve
from nearkin.space import Space

PML_NAMES = {
    "recall@1": "precision_at_1",
    "r_precision": "r_precision",
    "map@r": "mean_average_precision_at_r",
    "map": "mean_average_precision",
}


def drawn(shape: tuple[int, int], labels: list[int], spread: float = 1.0, seed: int = 0) -> Space:
    """Points around a centre for each label."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(max(labels) + 1, shape[1], generator=generator)
    return Space.of(centres[labels] + spread * torch.randn(shape, generator=generator), torch.tensor(labels))


def some_labels(items: int, classes: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, classes, items).tolist()


WITHOUT_TIES = {
    "random": drawn((60, 8), some_labels(60, 7), spread=3.0),
    "clustered": drawn((60, 8), some_labels(60, 7), spread=0.5),
    "one-dimensional": drawn((40, 1), some_labels(40, 5)),
    "many singletons": drawn((30, 4), some_labels(30, 40)),
    "one large class": drawn((40, 4), [0] * 35 + [1] * 5),
    "far from the origin": Space.of(1000 + torch.randn(30, 3, generator=torch.Generator().manual_seed(3)), [0, 1] * 15),
    "one class": drawn((12, 4), [0] * 12),
    "two points of a class": drawn((2, 3), [0, 0]),
}
TIED = {
    "all points equal": Space.of(torch.ones(12, 3), torch.tensor([0, 0, 0, 1, 1, 2, 1, 2, 2, 0, 1, 2])),
    "every point thrice": Space.of(
        torch.randn(10, 3, generator=torch.Generator().manual_seed(0)).repeat(3, 1), [0, 1] * 15
    ),
    "a grid": Space.of(torch.cartesian_prod(torch.arange(5.0), torch.arange(5.0)), some_labels(25, 4)),
    "two equal points": Space.of(torch.zeros(2, 2), torch.tensor([3, 3])),
}
without_ties = pytest.mark.parametrize("space", WITHOUT_TIES.values(), ids=WITHOUT_TIES.keys())
every_space = pytest.mark.parametrize(
    "space", [*WITHOUT_TIES.values(), *TIED.values()], ids=[*WITHOUT_TIES.keys(), *TIED.keys()]
)


def lowest_row_first(query, k, reference, ref_includes_query):
    """A search for pytorch-metric-learning with nearkin's order of ties, by a full stable sort."""
    distances = torch.cdist(query.double(), reference.double(), compute_mode="donot_use_mm_for_euclid_dist")
    if ref_includes_query:
        distances.fill_diagonal_(torch.inf)
    found = distances.sort(dim=1, stable=True)
    return found.values[:, :k], found.indices[:, :k]


def highest_row_first(query, k, reference, ref_includes_query):
    distances, rows = lowest_row_first(query.flip(0), k, reference.flip(0), ref_includes_query)
    return distances.flip(0), len(reference) - 1 - rows.flip(0)


def by_pml(search, query, query_labels, reference=None, reference_labels=None) -> dict[str, float]:
    calculator = AccuracyCalculator(include=tuple(PML_NAMES.values()), knn_func=search, device=torch.device("cpu"))
    found = calculator.get_accuracy(query, query_labels, reference, reference_labels)
    return {name: found[theirs] for name, theirs in PML_NAMES.items()}


def ours(space: Space) -> dict[str, float]:
    scores = retrieve(space, recall_at=1).scores
    return {name: scores[name] for name in PML_NAMES}


@pytest.mark.parametrize("name", [name for name in WITHOUT_TIES if name != "far from the origin"])
def test_retrieval_equals_pytorch_metric_learning_with_its_own_search(name):
    space = WITHOUT_TIES[name]
    theirs = by_pml(CustomKNN(LpDistance(normalize_embeddings=False)), space.embeddings, space.labels)
    assert ours(space) == pytest.approx(theirs)


@every_space
def test_retrieval_equals_pytorch_metric_learning_given_the_order_of_ties(space):
    assert ours(space) == pytest.approx(by_pml(lowest_row_first, space.embeddings, space.labels))


@pytest.mark.parametrize("space", [WITHOUT_TIES["random"], WITHOUT_TIES["one-dimensional"], *TIED.values()])
def test_separate_queries_and_gallery_equal_pytorch_metric_learning(space):
    x, labels, is_query = space.embeddings, space.labels, torch.arange(len(space)) < (len(space) + 1) // 3
    apart = Space(x, labels, torch.arange(len(space)), is_query, ~is_query)
    theirs = by_pml(lowest_row_first, x[is_query], labels[is_query], x[~is_query], labels[~is_query])
    assert ours(apart) == pytest.approx(theirs)


def test_scores_of_pytorch_metric_learning_depend_on_the_order_of_ties():
    space = TIED["all points equal"]
    there = by_pml(highest_row_first, space.embeddings, space.labels)
    assert ours(space)["map@r"] != pytest.approx(there["map@r"])
    free = WITHOUT_TIES["random"]
    assert by_pml(highest_row_first, free.embeddings, free.labels) == pytest.approx(ours(free))


def test_only_singletons_cannot_be_scored():
    lonely = drawn((6, 3), list(range(6)))
    assert all(np.isnan(score) for score in by_pml(lowest_row_first, lonely.embeddings, lonely.labels).values())
    with pytest.raises(UserError, match="no query has another item of its class"):
        evaluate(lonely)


def sklearn_average_precisions(space: Space) -> list[float]:
    """For each query that has a positive."""
    x, labels = space.embeddings.double(), space.labels
    found = []
    for query in range(len(space)):
        others = torch.arange(len(space)) != query
        same = labels[others] == labels[query]
        if same.any():
            found.append(average_precision_score(same.numpy(), -(x[others] - x[query]).norm(dim=1).numpy()))
    return found


@without_ties
def test_average_precision_equals_scikit_learn(space):
    retrieval = retrieve(space)
    found = retrieval.values["map"][retrieval.positives > 0]
    np.testing.assert_allclose(found, sklearn_average_precisions(space), atol=1e-12)


def test_scikit_learn_gives_tied_items_the_same_rank():
    space = TIED["all points equal"]  # 3 of the 11 others are of the query's class
    np.testing.assert_allclose(sklearn_average_precisions(space), 3 / 11)
    assert retrieve(space).values["map"].unique().numel() > 1


@every_space
def test_neighbours_equal_scikit_learn(space):
    x, k = space.embeddings, len(space) - 1
    theirs, their_rows = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(x.double().numpy()).kneighbors()
    found, rows = nearest_neighbours(x, x, k, torch.arange(len(space)))
    np.testing.assert_allclose(found, theirs, rtol=1e-4, atol=1e-6)
    assert (rows != torch.arange(len(space))[:, None]).all()
    assert torch.equal(retrieve(space, kept_neighbours=k).neighbours, rows)
    if any(space is one for one in WITHOUT_TIES.values()):  # else the distances agree, the order of ties need not
        np.testing.assert_array_equal(rows, their_rows)


def groupings() -> dict[str, tuple[list[int], list[int]]]:
    """Labels and cluster numbers."""
    several = some_labels(50, 6)
    return {
        "random": (several, some_labels(50, 5, seed=1)),
        "nearly right": (several, several[:40] + some_labels(10, 6, seed=2)),
        "the same by other names": (several, [10 - label for label in several]),
        "one cluster": (several, [0] * 50),
        "one class": ([0] * 50, several),
        "one class and one cluster": ([0] * 5, [3] * 5),
        "singleton classes": (list(range(50)), several),
        "singleton clusters": (several, list(range(50))),
        "both singletons": (list(range(5)), [3, 1, 4, 0, 2]),
        "singletons in one cluster": (list(range(5)), [0] * 5),
        "two points together": ([0, 0], [1, 1]),
        "two points apart": ([0, 1], [1, 1]),
        "one point": ([4], [2]),
    }


@pytest.mark.parametrize(("classes", "clusters"), groupings().values(), ids=groupings().keys())
def test_clustering_scores_equal_scikit_learn(classes, clusters):
    found = cluster_scores(torch.tensor(clusters), torch.tensor(classes))
    (_, apart), (missed, together) = pair_confusion_matrix(classes, clusters)
    pairs = 2 * together + apart + missed
    assert found == pytest.approx(
        {
            "nmi_geometric": normalized_mutual_info_score(classes, clusters, average_method="geometric"),
            "nmi_arithmetic": normalized_mutual_info_score(classes, clusters, average_method="arithmetic"),
            "ami": adjusted_mutual_info_score(classes, clusters),
            "ari": adjusted_rand_score(classes, clusters),
            "pairwise_f1": 2 * together / pairs if pairs else 1.0,  # no pair exists, and none is missed
        },
        abs=1e-9,
    )


@pytest.mark.parametrize("name", ["random", "clustered", "one-dimensional", "many singletons", "one large class"])
def test_clusters_are_scored_as_in_pytorch_metric_learning(name):
    space = WITHOUT_TIES[name]
    calculator = AccuracyCalculator(
        include=("NMI", "AMI"),
        kmeans_func=lambda x, k: find_clusters(Space.of(x, torch.arange(len(x)) % k)),
        knn_func=lowest_row_first,
        device=torch.device("cpu"),
    )
    theirs = calculator.get_accuracy(space.embeddings, space.labels)
    scores = evaluate(space).scores
    assert scores["nmi_arithmetic"] == pytest.approx(theirs["NMI"])
    assert scores["ami"] == pytest.approx(theirs["AMI"])
