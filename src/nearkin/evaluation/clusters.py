"""Clustering scores: how well a partition, told the number of classes, finds the classes again.

NMI as mutual information over the geometric mean of the two entropies: Song et al., "Deep Metric Learning via
Facility Location" (CVPR 2017), Eq. 9. Over their arithmetic mean: Sanakoyeu et al., "Divide and Conquer the
Embedding Space for Metric Learning" (CVPR 2019). The geometric one is never the smaller.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearkin.clustering import kmeans, spectral_embedding
from nearkin.clustering.agreement import expected_information
from nearkin.errors import unknown_name
from nearkin.progress import bar
from nearkin.space import Space

ITERATIONS = 100
PARTITIONS = ("kmeans", "spectral")
Indices = npt.NDArray[np.int64]


def find_clusters(space: Space, seed: int = 0, partition: str = "kmeans") -> Tensor:
    """(items,) the cluster of every item of the space, with as many clusters as there are classes.

    ``partition="kmeans"`` or, for normalised spectral clustering (Ng, Jordan, Weiss 2001, with inner products),
    "spectral": the same k-means of the leading left singular vectors, as many as there are classes. These cost, once,
    some N·D² operations and a few float64 copies of the N × D embeddings.

    >>> line = Space.of(torch.tensor([[0.0], [0.1], [5.0], [5.1]]), torch.tensor([3, 3, 7, 7]))
    >>> a, b, c, d = find_clusters(line).tolist()
    >>> a == b, b == c, c == d
    (True, False, True)
    """
    if partition not in PARTITIONS:
        raise unknown_name("partition", partition, PARTITIONS)
    classes = len(torch.unique(space.labels))
    points = spectral_embedding(space.embeddings, leading=classes) if partition == "spectral" else space.embeddings
    with bar("k-means", ITERATIONS) as advance:
        return kmeans(points, classes, seed, ITERATIONS, after_each=lambda _: advance()).assignment


def cluster_scores(clusters: Tensor, labels: Tensor) -> dict[str, float]:
    """How well two groupings (N,) agree; the names of clusters do not matter.

    ``nmi_geometric`` and ``nmi_arithmetic``: mutual information over the geometric or arithmetic mean of the entropies,
    MI / √(H₁·H₂) and 2·MI / (H₁ + H₂). ``ami``: the same (arithmetic) above what chance would give, (MI − E[MI]) /
    (mean − E[MI]). ``ari``: the adjusted Rand index, the same for pairs. ``pairwise_f1``: of the pairs that share a
    cluster against those that share a label. By scikit-learn: 1 where both groupings are one single group; NMI is 0
    where MI is 0.

    >>> scores = cluster_scores(torch.tensor([1, 1, 0, 2]), torch.tensor([5, 5, 9, 9]))
    >>> {name: round(score, 4) for name, score in scores.items()}
    {'nmi_geometric': 0.8165, 'nmi_arithmetic': 0.8, 'ami': 0.5714, 'ari': 0.5714, 'pairwise_f1': 0.6667}
    """
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
    from sklearn.metrics.cluster import pair_confusion_matrix

    truth, found = labels.cpu().numpy(), clusters.cpu().numpy()
    scores = {
        f"nmi_{mean}": float(normalized_mutual_info_score(truth, found, average_method=mean))
        for mean in ("geometric", "arithmetic")
    }
    (_, false_positive), (false_negative, true_positive) = pair_confusion_matrix(truth, found).tolist()
    wrong = false_positive + false_negative
    return scores | {
        "ami": _adjusted_mutual_information(truth, found),
        "ari": float(adjusted_rand_score(truth, found)),
        "pairwise_f1": 2 * true_positive / (2 * true_positive + wrong) if true_positive or wrong else 1.0,
    }


def _adjusted_mutual_information(truth: Indices, found: Indices) -> float:
    """scikit-learn's, whose expectation takes half a minute for 11,316 classes; here by the sizes that occur."""
    from sklearn.metrics import mutual_info_score

    class_sizes, cluster_sizes = (np.unique(each, return_counts=True)[1] for each in (truth, found))
    pairs = len(np.unique(np.stack([truth, found]), axis=1).T)
    if pairs == len(class_sizes) == len(cluster_sizes):
        return 1.0  # the same groups, where the quotient below may be rounding over rounding
    expected = expected_information(class_sizes, cluster_sizes).sum() / len(truth)
    mean = sum(-(sizes / len(truth) * np.log(sizes / len(truth))).sum() for sizes in (class_sizes, cluster_sizes)) / 2
    least = np.finfo(np.float64).eps
    above_chance = mean - expected
    above_chance = max(above_chance, least) if above_chance >= 0 else min(above_chance, -least)
    return float((mutual_info_score(truth, found) - expected) / above_chance)
