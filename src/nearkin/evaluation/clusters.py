"""Clustering scores: how well k-means, told the number of classes, finds the classes again.

NMI as mutual information over the geometric mean of the two entropies: Song et al., "Deep Metric Learning via
Facility Location" (CVPR 2017), Eq. 9. Over their arithmetic mean: Sanakoyeu et al., "Divide and Conquer the
Embedding Space for Metric Learning" (CVPR 2019). The geometric one is never the smaller.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.clustering import kmeans
from nearkin.progress import bar
from nearkin.space import Space

ITERATIONS = 100


def find_clusters(space: Space, seed: int = 0) -> Tensor:
    """(items,) the cluster of every item of the space, by k-means with as many clusters as there are classes.

    >>> line = Space.of(torch.tensor([[0.0], [0.1], [5.0], [5.1]]), torch.tensor([3, 3, 7, 7]))
    >>> a, b, c, d = find_clusters(line).tolist()
    >>> a == b, b == c, c == d
    (True, False, True)
    """
    classes = len(torch.unique(space.labels))
    with bar("k-means", ITERATIONS) as advance:
        return kmeans(space.embeddings, classes, seed, ITERATIONS, after_each=lambda _: advance()).assignment


def cluster_scores(clusters: Tensor, labels: Tensor) -> dict[str, float]:
    """``nmi_geometric`` and ``nmi_arithmetic`` of two groupings (N,), 1 where they are the same.

    MI / √(H₁·H₂) and 2·MI / (H₁ + H₂). Names of clusters do not matter. By scikit-learn: 1 where both groupings
    are one single group, 0 where MI is 0.

    >>> scores = cluster_scores(torch.tensor([1, 1, 0, 2]), torch.tensor([5, 5, 9, 9]))
    >>> {name: round(score, 4) for name, score in scores.items()}
    {'nmi_geometric': 0.8165, 'nmi_arithmetic': 0.8}
    """
    from sklearn.metrics import normalized_mutual_info_score

    truth, found = labels.cpu().numpy(), clusters.cpu().numpy()
    return {
        f"nmi_{mean}": float(normalized_mutual_info_score(truth, found, average_method=mean))
        for mean in ("geometric", "arithmetic")
    }
