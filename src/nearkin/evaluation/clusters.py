"""Clustering scores: the agreement of classes with a clustering that has as many clusters as there are classes.

NMI divides mutual information by the geometric mean of the two entropies in Song et al., "Deep Metric Learning via
Facility Location" (CVPR 2017), Eq. 9, and by their arithmetic mean in Sanakoyeu et al., "Divide and Conquer the
Embedding Space for Metric Learning" (CVPR 2019). The geometric form is never smaller.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearkin.clustering import kmeans, spectral_embedding
from nearkin.clustering.agreement import expected_information
from nearkin.errors import unknown_name
from nearkin.evaluation.metrics import known_metrics, metric
from nearkin.progress import bar
from nearkin.space import Space

ITERATIONS = 100
CLUSTERINGS = ("kmeans", "spectral")


def find_clusters(space: Space, seed: int = 0, clustering: str = "kmeans") -> Tensor:
    """Clusters a space into as many clusters as it has classes; (items,) the cluster of each item.

    ``clustering`` is "kmeans", or "spectral" for normalised spectral clustering (Ng, Jordan, Weiss 2001, with inner
    products): k-means on the leading left singular vectors, as many as there are classes. Computing these takes about
    N·D² operations and a few float64 copies of the N × D embeddings.

    >>> line = Space.of(torch.tensor([[0.0], [0.1], [5.0], [5.1]]), torch.tensor([3, 3, 7, 7]))
    >>> a, b, c, d = find_clusters(line).tolist()
    >>> a == b, b == c, c == d
    (True, False, True)
    """
    if clustering not in CLUSTERINGS:
        raise unknown_name("clustering", clustering, CLUSTERINGS)
    classes = len(torch.unique(space.labels))
    points = spectral_embedding(space.embeddings, leading=classes) if clustering == "spectral" else space.embeddings
    with bar("k-means", ITERATIONS) as advance:
        return kmeans(points, classes, seed, ITERATIONS, after_each=lambda _: advance()).assignment


def cluster_scores(clusters: Tensor, labels: Tensor) -> dict[str, float]:
    """Computes all clustering metrics for the agreement of clusters (N,) with labels (N,).

    As in scikit-learn, scores are 1 if there is one cluster and one class, and NMI is 0 if the mutual information is 0.

    >>> scores = cluster_scores(torch.tensor([1, 1, 0, 2]), torch.tensor([5, 5, 9, 9]))
    >>> {name: round(score, 4) for name, score in scores.items()}
    {'nmi_geometric': 0.8165, 'nmi_arithmetic': 0.8, 'ami': 0.5714, 'ari': 0.5714, 'pairwise_f1': 0.6667}
    """
    found, truth = clusters.cpu(), labels.cpu()
    return {each.name: float(each.compute(found, truth)) for each in known_metrics("clusters")}


@metric(
    "nmi_geometric",
    "NMI (geometric)",
    "mutual information of clusters and classes, divided by the geometric mean of their entropies",
    higher_is_better=True,
    needs="clusters",
)
def nmi_geometric(clusters: Tensor, labels: Tensor) -> float:
    """MI / √(H₁·H₂)."""
    return _normalized_information(_Contingency(clusters, labels), lambda a, b: math.sqrt(a * b))


@metric(
    "nmi_arithmetic",
    "NMI (arithmetic)",
    "mutual information of clusters and classes, divided by the arithmetic mean of their entropies",
    higher_is_better=True,
    needs="clusters",
)
def nmi_arithmetic(clusters: Tensor, labels: Tensor) -> float:
    """2·MI / (H₁ + H₂)."""
    return _normalized_information(_Contingency(clusters, labels), lambda a, b: (a + b) / 2)


@metric("ami", "AMI", "NMI (arithmetic), corrected for chance", higher_is_better=True, needs="clusters")
def ami(clusters: Tensor, labels: Tensor) -> float:
    """(MI − E[MI]) / (mean of the entropies − E[MI]).

    Equals scikit-learn's AMI, whose E[MI] takes half a minute for 11,316 classes; here each size is computed only once.
    """
    table = _Contingency(clusters, labels)
    if len(table.cells) == len(table.class_sizes) == len(table.cluster_sizes):
        return 1.0  # identical groups, for which the quotient below can be dominated by rounding errors
    expected = expected_information(table.class_sizes, table.cluster_sizes).sum() / table.items
    mean = (table.entropy(table.class_sizes) + table.entropy(table.cluster_sizes)) / 2
    least = np.finfo(np.float64).eps
    above_chance = mean - expected
    above_chance = max(above_chance, least) if above_chance >= 0 else min(above_chance, -least)
    return float((table.information() - expected) / above_chance)


@metric(
    "ari",
    "ARI",
    "adjusted Rand index: share of item pairs on which clusters and classes agree, corrected for chance",
    higher_is_better=True,
    needs="clusters",
)
def ari(clusters: Tensor, labels: Tensor) -> float:
    """(pairs in both − chance) / (mean of the pairs in clusters and in classes − chance)."""
    table = _Contingency(clusters, labels)
    both, in_clusters, in_classes, pairs = table.pairs()
    if both == in_clusters == in_classes:
        return 1.0
    # Multiplied by 2 · pairs, so that all terms are exact integers.
    chance = 2 * in_clusters * in_classes
    return (2 * both * pairs - chance) / ((in_clusters + in_classes) * pairs - chance)


@metric(
    "pairwise_f1",
    "Pairwise F1",
    "F1 score of sharing a cluster as a prediction of sharing a class, over all pairs of items",
    higher_is_better=True,
    needs="clusters",
)
def pairwise_f1(clusters: Tensor, labels: Tensor) -> float:
    both, in_clusters, in_classes, _ = _Contingency(clusters, labels).pairs()
    return 2 * both / (in_clusters + in_classes) if in_clusters or in_classes else 1.0


class _Contingency:
    """How many items each class shares with each cluster. scikit-learn has these scores, but takes 1.7 s to import."""

    def __init__(self, clusters: Tensor, labels: Tensor) -> None:
        _, class_of, self.class_sizes = np.unique(labels.numpy(), return_inverse=True, return_counts=True)
        _, cluster_of, self.cluster_sizes = np.unique(clusters.numpy(), return_inverse=True, return_counts=True)
        self.items = len(class_of)
        cells, self.cells = np.unique(class_of * len(self.cluster_sizes) + cluster_of, return_counts=True)
        of_class, of_cluster = np.divmod(cells, len(self.cluster_sizes))
        self._sizes = self.class_sizes[of_class], self.cluster_sizes[of_cluster]

    def information(self) -> float:
        """The mutual information."""
        in_class, in_cluster = self._sizes
        terms = self.cells / self.items * (np.log(self.cells / in_class) - np.log(in_cluster / self.items))
        return max(0.0, float(terms.sum()))

    def entropy(self, sizes: npt.NDArray[np.int64]) -> float:
        shares = sizes / self.items
        return float(-(shares * np.log(shares)).sum())

    def pairs(self) -> tuple[int, int, int, int]:
        """The number of pairs of items in the same cluster and class, in the same cluster, in the same class; all."""
        counts = (self.cells, self.cluster_sizes, self.class_sizes, np.array([self.items]))
        both, in_clusters, in_classes, pairs = (int((each * (each - 1) // 2).sum()) for each in counts)
        return both, in_clusters, in_classes, pairs


def _normalized_information(table: _Contingency, mean: Callable[[float, float], float]) -> float:
    if len(table.class_sizes) == len(table.cluster_sizes) == 1:
        return 1.0
    information = table.information()
    if information <= np.finfo(np.float64).eps:
        return 0.0  # also if one of the entropies is 0
    return information / mean(table.entropy(table.class_sizes), table.entropy(table.cluster_sizes))
