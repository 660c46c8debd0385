"""k-means: Lloyd's iterations from a k-means++ start, one implementation for every device.

Arthur and Vassilvitskii, "k-means++: The Advantages of Careful Seeding" (SODA 2007); a new centre is the best
of 2 + ln k draws, as in scikit-learn. Deviation: beyond 127 centres, a 64th of the centres chosen so far is
drawn at once, so that 11,316 centres take 400 rounds instead of 11,316.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nearkin.clustering.distances import SquaredDistances, near_origin, row_blocks
from nearkin.clustering.neighbours import nearest_neighbours
from nearkin.errors import UserError


@dataclass(frozen=True, eq=False)
class KMeansResult:
    """A grouping of N points into k clusters.

    Attributes:
        centroids: (k, D) the means of the clusters.
        assignment: (N,) the cluster of every point: its nearest centroid.
        inertia: sum of the squared distances of all points to their centroids.
    """

    centroids: Tensor
    assignment: Tensor
    inertia: float


def kmeans(
    x: Tensor,
    k: int,
    seed: int = 0,
    iterations: int = 100,
    after_each: Callable[[float], None] | None = None,
) -> KMeansResult:
    """Groups points around k centroids; stops when no point changes its cluster.

    The same seed gives the same clusters. An empty cluster gets the point farthest from its centroid, so that
    in the end none is empty unless there are fewer than k distinct points (or the iterations were too few).

    Args:
        x: (N, D) floating point.
        k: number of clusters, at most N.
        seed: decides the start.
        iterations: at most so many, at least 1.
        after_each: called with the inertia after each iteration, for instance to move a progress bar.

    >>> result = kmeans(torch.tensor([[0.0], [1.0], [9.0], [10.0]]), k=2)
    >>> sorted(result.centroids.flatten().tolist()), result.inertia
    ([0.5, 9.5], 1.0)
    """
    if x.ndim != 2:
        raise UserError(f"k-means needs points of shape (N, D), not {tuple(x.shape)}")
    if not 1 <= k <= len(x):
        raise UserError(f"k={k} clusters cannot be made of {len(x)} points; choose k from 1 to {len(x)}")
    x = x.detach().to(torch.promote_types(x.dtype, torch.float32))
    centroids = x[_start(x, k, torch.Generator().manual_seed(seed))]
    distances, assignment = _nearest(x, centroids)
    groups = _fill_empty(assignment, distances, k)
    inertia = math.inf
    for _ in range(max(1, iterations)):
        centroids = _means(x, groups, centroids)
        distances, assignment = _nearest(x, centroids)
        inertia = distances.double().square().sum().item()
        if after_each is not None:
            after_each(inertia)
        previous, groups = groups, _fill_empty(assignment, distances, k)
        if torch.equal(groups, previous):
            break
    return KMeansResult(centroids, assignment, inertia)


def _start(x: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """(k,) rows to start from, drawn with chances ∝ their squared distance to the nearest one before."""
    x, _, _ = near_origin(x, x)
    squared_distances = SquaredDistances(x)
    draws = 2 + int(math.log(k))
    chosen = torch.randint(len(x), (1,), generator=generator).to(x.device)
    nearest = squared_distances(x[chosen])[0]  # (N,) squared distance to the nearest chosen row
    while len(chosen) < k:
        at_once = min(len(chosen) // 64, k - len(chosen))
        if at_once <= 1:
            new = _draw(nearest, min(draws, len(x)), generator)
            with_each = torch.minimum(squared_distances(x[new]), nearest)  # (draws, N)
            best = with_each.sum(1).argmin()
            new, nearest = new[best, None], with_each[best]
        else:
            new = _draw(nearest, at_once, generator)
            for rows in row_blocks(at_once, len(x)):
                nearest = torch.minimum(nearest, squared_distances(x[new[rows]]).amin(0))
        nearest[new] = 0  # exactly, so that no row is drawn twice while others are left
        chosen = torch.cat([chosen, new])
    return chosen


def _draw(weights: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """n different rows with chances ∝ their weights (N,): the first in a race of exponential arrivals."""
    arrival = torch.empty(len(weights)).exponential_(generator=generator).to(weights.device)
    return (weights / arrival).topk(n).indices


def _nearest(x: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    distances, nearest = nearest_neighbours(x, centroids, 1)
    return distances[:, 0], nearest[:, 0]


def _fill_empty(assignment: Tensor, distances: Tensor, k: int) -> Tensor:
    """The assignment with the farthest points moved into the empty clusters, one each."""
    empty = (torch.bincount(assignment, minlength=k) == 0).nonzero().squeeze(1)
    farthest = distances.topk(len(empty))
    movable = farthest.values > 0  # a point on its centroid gains nothing, and may be the only one there
    return assignment.index_copy(0, farthest.indices[movable], empty[movable])


def _means(x: Tensor, groups: Tensor, before: Tensor) -> Tensor:
    """(k, D) means of the groups, summed in float64; an empty group stays where it was before."""
    sums = torch.zeros(before.shape, dtype=torch.float64, device=x.device).index_add_(0, groups, x.double())
    sizes = torch.bincount(groups, minlength=len(before))[:, None]
    return torch.where(sizes > 0, (sums / sizes.clamp(min=1)).to(x.dtype), before)
