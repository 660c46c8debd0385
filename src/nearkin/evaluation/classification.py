"""Classification by weighted votes of nearest clusters (kNC) or nearest items (soft kNN), or by a linear classifier.

Rippel, Paluri, Dollár, Bourdev: Metric Learning with Adaptive Density Discrimination, ICLR 2016, Eq. 6.

σ² is the total variance of Eq. 4, not the variance per dimension. Votes are divided by the vote of the nearest, which
does not change the argmax. A query far from everything therefore still has a vote of 1, for its nearest neighbour's
class.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from nearkin.clustering import nearest_neighbours
from nearkin.errors import UserError
from nearkin.evaluation.metrics import metric
from nearkin.space import Space


def nearest_cluster_labels(
    queries: Tensor, centroids: Tensor, labels: Tensor, variance: float, nearest: int = 128
) -> Tensor:
    """Classifies queries by kNC: the class with the largest sum of exp(−|r − μ|² / 2σ²) over the L nearest clusters.

    Args:
        queries: (Q, D) floating point, r in Eq. 6.
        centroids: (C, D) the means of the clusters, μ.
        labels: (C,) integers, the classes of the clusters.
        variance: σ², the mean squared distance from training items to their centroids; with 0, the nearest cluster
            decides.
        nearest: L, the number of clusters that vote; all if there are fewer.

    Returns:
        (Q,) labels; the lowest label wins ties.

    >>> centroids, labels = torch.tensor([[0.0], [3.0], [3.5]]), torch.tensor([4, 7, 7])
    >>> [nearest_cluster_labels(torch.tensor([[1.4]]), centroids, labels, variance).item() for variance in (0.1, 10.0)]
    [4, 7]
    """
    _check(centroids, labels, variance)
    distances, rows = nearest_neighbours(queries, centroids, min(nearest, len(centroids)))
    return _soft_vote(distances, labels.to(rows.device)[rows], variance)


def soft_knn_labels(
    queries: Tensor,
    gallery: Tensor,
    labels: Tensor,
    variance: float | None = None,
    neighbours: int = 128,
    exclude: Tensor | None = None,
) -> Tensor:
    """Classifies queries by soft kNN, which is kNC with each gallery item as its own cluster.

    Args:
        queries: (Q, D) floating point.
        gallery: (N, D).
        labels: (N,) integers, the classes of the gallery.
        variance: σ²; None uses the mean squared distance from queries to their nearest neighbours.
        neighbours: number of items that vote; all if there are fewer.
        exclude: (Q,) a gallery row that does not vote for each query, usually the query itself; −1 excludes none.

    Returns:
        (Q,) labels; the lowest label wins ties.

    >>> line, labels = torch.tensor([[0.0], [1.0], [1.5], [5.0]]), torch.tensor([1, 1, 2, 2])
    >>> soft_knn_labels(line, line, labels, exclude=torch.arange(4)).tolist()
    [1, 2, 1, 2]
    """
    _check(gallery, labels, variance)
    own = exclude is not None and bool((exclude >= 0).any())
    distances, rows = nearest_neighbours(queries, gallery, min(neighbours, len(gallery) - own), exclude)
    if variance is None:
        variance = distances[:, :1].double().square().mean().item() if len(queries) else 0.0
    return _soft_vote(distances, labels.to(rows.device)[rows], variance)


@metric(
    "soft_knn_error",
    "Soft kNN error",
    "share of items that a weighted vote of their 128 nearest training items assigns to a wrong class",
    higher_is_better=False,
    needs="read-out",
)
def soft_knn_error(space: Space, trained_on: Space) -> float:
    """The error of `soft_knn_labels` for the items of a space, with the training items as gallery."""
    predicted = soft_knn_labels(space.embeddings, trained_on.embeddings, trained_on.labels)
    return error_rate(predicted, space.labels)


@metric(
    "nearest_cluster_error",
    "k-nearest-cluster error",
    "share of items that a weighted vote of their nearest clusters of training items assigns to a wrong class",
    higher_is_better=False,
    needs="read-out",
)
def nearest_cluster_error(
    space: Space, centroids: Tensor, labels: Tensor, variance: float, nearest: int = 128
) -> float:
    """The error of `nearest_cluster_labels` for the items of a space."""
    return error_rate(nearest_cluster_labels(space.embeddings, centroids, labels, variance, nearest), space.labels)


@metric(
    "classifier_error",
    "Classifier error",
    "share of items that the linear classifier of the softmax loss assigns to a wrong class",
    higher_is_better=False,
    needs="read-out",
)
def classifier_error(space: Space, weight: Tensor, classes: Tensor) -> float:
    """The error of a linear classifier for the items of a space.

    Args:
        space: the items.
        weight: (C, D) one row per class; the row with the largest dot product wins.
        classes: (C,) the label of each row.

    >>> classifier_error(Space.of([[1.0, 0.0], [0.0, 2.0]], [0, 0]), torch.eye(2), torch.tensor([0, 1]))
    0.5
    """
    return error_rate(classes.to(weight.device)[(space.embeddings @ weight.T).argmax(1)], space.labels)


def error_rate(predicted: Tensor, truth: Tensor) -> float:
    """The share of predicted labels (N,) that differ from the true labels (N,).

    >>> error_rate(torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 3, 0]))
    0.25
    """
    if predicted.shape != truth.shape or len(truth) == 0:
        shapes = f"{tuple(predicted.shape)} and {tuple(truth.shape)}"
        raise UserError(f"predicted and truth must have the same shape (N,) with N >= 1, got {shapes}")
    return (predicted != truth.to(predicted.device)).double().mean().item()


def _check(gallery: Tensor, labels: Tensor, variance: float | None) -> None:
    if labels.shape != gallery.shape[:1]:
        raise UserError(f"labels must have shape ({len(gallery)},), one per vector, got {tuple(labels.shape)}")
    if variance is not None and not 0 <= variance < float("inf"):
        raise UserError(f"variance must be a finite number >= 0, got {variance}")


def _soft_vote(distances: Tensor, labels: Tensor, variance: float) -> Tensor:
    """(Q,) the label with the largest sum of votes, from ascending distances and labels (Q, L)."""
    squares = distances.double().square()
    votes = torch.exp((squares[:, :1] - squares) / max(2 * variance, sys.float_info.min))
    labels, order = labels.sort(dim=1, stable=True)
    runs = (labels.diff(dim=1) != 0).long().cumsum(1)  # equal labels are adjacent: number the runs
    runs = torch.cat([torch.zeros_like(labels[:, :1]), runs], 1)
    sums = torch.zeros_like(votes).scatter_add_(1, runs, votes.gather(1, order))
    winner = (runs == sums.argmax(1, keepdim=True)).long().argmax(1, keepdim=True)
    return labels.gather(1, winner)[:, 0]
