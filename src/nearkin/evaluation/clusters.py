"""Clustering scores: the agreement of classes with a clustering that has as many clusters as there are classes.

NMI divides mutual information by the geometric mean of the two entropies in Song et al., "Deep Metric Learning via
Facility Location" (CVPR 2017), Eq. 9, and by their arithmetic mean in Sanakoyeu et al., "Divide and Conquer the
Embedding Space for Metric Learning" (CVPR 2019). The geometric form is never smaller.
"""

from __future__ import annotations

import numpy as np
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
    return _normalized_information(clusters, labels, "geometric")


@metric(
    "nmi_arithmetic",
    "NMI (arithmetic)",
    "mutual information of clusters and classes, divided by the arithmetic mean of their entropies",
    higher_is_better=True,
    needs="clusters",
)
def nmi_arithmetic(clusters: Tensor, labels: Tensor) -> float:
    """2·MI / (H₁ + H₂)."""
    return _normalized_information(clusters, labels, "arithmetic")


@metric("ami", "AMI", "NMI (arithmetic), corrected for chance", higher_is_better=True, needs="clusters")
def ami(clusters: Tensor, labels: Tensor) -> float:
    """(MI − E[MI]) / (mean of the entropies − E[MI]).

    Equals scikit-learn's AMI, whose E[MI] takes half a minute for 11,316 classes; here each size is computed only once.
    """
    from sklearn.metrics import mutual_info_score

    truth, found = labels.numpy(), clusters.numpy()
    class_sizes, cluster_sizes = (np.unique(each, return_counts=True)[1] for each in (truth, found))
    pairs = len(np.unique(np.stack([truth, found]), axis=1).T)
    if pairs == len(class_sizes) == len(cluster_sizes):
        return 1.0  # identical groups, for which the quotient below can be dominated by rounding errors
    expected = expected_information(class_sizes, cluster_sizes).sum() / len(truth)
    mean = sum(-(sizes / len(truth) * np.log(sizes / len(truth))).sum() for sizes in (class_sizes, cluster_sizes)) / 2
    least = np.finfo(np.float64).eps
    above_chance = mean - expected
    above_chance = max(above_chance, least) if above_chance >= 0 else min(above_chance, -least)
    return float((mutual_info_score(truth, found) - expected) / above_chance)


@metric(
    "ari",
    "ARI",
    "adjusted Rand index: share of item pairs on which clusters and classes agree, corrected for chance",
    higher_is_better=True,
    needs="clusters",
)
def ari(clusters: Tensor, labels: Tensor) -> float:
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(labels.numpy(), clusters.numpy()))


@metric(
    "pairwise_f1",
    "Pairwise F1",
    "F1 score of sharing a cluster as a prediction of sharing a class, over all pairs of items",
    higher_is_better=True,
    needs="clusters",
)
def pairwise_f1(clusters: Tensor, labels: Tensor) -> float:
    from sklearn.metrics.cluster import pair_confusion_matrix

    (_, false_positive), (false_negative, true_positive) = pair_confusion_matrix(
        labels.numpy(), clusters.numpy()
    ).tolist()
    wrong = false_positive + false_negative
    return 2 * true_positive / (2 * true_positive + wrong) if true_positive or wrong else 1.0


def _normalized_information(clusters: Tensor, labels: Tensor, mean: str) -> float:
    from sklearn.metrics import normalized_mutual_info_score

    return float(normalized_mutual_info_score(labels.numpy(), clusters.numpy(), average_method=mean))
