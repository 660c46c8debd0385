"""k-means in many groups at once, for example in every class.

Rippel et al., "Metric Learning with Adaptive Density Discrimination" (ICLR 2016), Eq. 2 and 3: each class has its own
k-means with k-means++ initialisation. With many small classes, one call per class would be slow; here each step
processes all groups. As in `kmeans`, a new centre is the best of several draws.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nearkin.clustering.distances import row_blocks
from nearkin.clustering.kmeans import cluster_means
from nearkin.errors import UserError

DRAWS = 3  # candidates for each centre except the first


@dataclass(frozen=True, eq=False)
class GroupedKMeans:
    """A clustering of each of G groups. The C clusters are numbered consecutively, by ascending group.

    Attributes:
        centroids: (C, D) the means of the clusters; no cluster is empty.
        assignment: (N,) the cluster of each item.
        group_of: (C,) the group of each cluster, as in the input.
        inertia: (G,) float64, by ascending group: sum of squared distances from the items to their centroids.
    """

    centroids: Tensor
    assignment: Tensor
    group_of: Tensor
    inertia: Tensor


def kmeans_per_group(x: Tensor, groups: Tensor, k: int | Tensor, seed: int = 0, iterations: int = 100) -> GroupedKMeans:
    """Runs k-means in every group separately; stops when no item changes its cluster.

    A group with fewer than k distinct points gets one cluster for each of them. The clusters of a group depend on the
    seed and on its own items and their order, but not on other groups.

    Args:
        x: (N, D) floating point.
        groups: (N,) integers.
        k: number of clusters per group, at least 1; or (G,) one number per group, by ascending group.
        seed: random seed.
        iterations: maximum number of iterations, at least 1.

    >>> line = torch.tensor([[0.0], [1.0], [9.0], [5.0], [5.0]])
    >>> found = kmeans_per_group(line, torch.tensor([7, 7, 7, -2, -2]), k=2)
    >>> found.group_of.tolist(), found.inertia.tolist()
    ([-2, 7, 7], [0.0, 0.5])
    >>> found.centroids[found.assignment].flatten().tolist()
    [0.5, 0.5, 9.0, 5.0, 5.0]
    """
    _check(x, groups)
    x = x.detach().to(torch.promote_types(x.dtype, torch.float32))
    ids, group, sizes = groups.to(x.device).unique(return_inverse=True, return_counts=True)
    seeds = _start(x, group, sizes, _per_group(k, ids), seed)
    counts = torch.bincount(group[seeds], minlength=len(ids))  # (G,) clusters of each group
    centroids = x[seeds]
    cluster = torch.full_like(group, -1)
    moving = torch.arange(len(x), device=x.device)  # items of groups whose clusters still change
    for _ in range(max(1, iterations)):
        squares, nearest = _nearest(x, moving, group, counts, centroids)
        nearest = _fill_empty(nearest, squares, group[moving], counts)
        changed = torch.zeros_like(counts, dtype=torch.bool)
        changed[group[moving[nearest != cluster[moving]]]] = True
        cluster[moving] = nearest
        moving = moving[changed[group[moving]]]
        if len(moving) == 0:
            break
        centroids = cluster_means(x[moving], cluster[moving], centroids)
    inertia = _sums(_squares(x, torch.arange(len(x), device=x.device), centroids, cluster), group, len(ids))
    return GroupedKMeans(centroids, cluster, ids.repeat_interleave(counts), inertia)


def choose_clusters(x: Tensor, groups: Tensor, most: int, seed: int = 0) -> Tensor:
    """Chooses the number of clusters of each group by the lowest BIC, from 1 to ``most``; (G,) by ascending group.

    BIC = n·d·log(inertia / ((n − k)·d)) + 2 Σ m·log(n / m) + k·(d + 1)·log(n) for n items in d dimensions and k
    clusters with m items each and one spherical variance, as found by `kmeans_per_group` (Pelleg and Moore, "X-means",
    ICML 2000). k is less than n, because clusters of one item have no variance. If several k fit the items exactly, the
    smallest is chosen.

    Args:
        x: (N, D) floating point.
        groups: (N,) integers.
        most: the maximum number of clusters to try.
        seed: random seed of k-means.

    >>> line = torch.tensor([[0.0], [0.1], [0.2], [9.0], [9.1], [9.2], [3.0], [4.0]])
    >>> choose_clusters(line, torch.tensor([0, 0, 0, 0, 0, 0, 1, 1]), most=2).tolist()
    [2, 1]
    """
    if most < 1:
        raise UserError(f"most must be at least 1, got {most}")
    ids, counts = groups.to(x.device).unique(return_counts=True)
    n = counts.double()
    scores = []
    for k in range(1, most + 1):
        found = kmeans_per_group(x, groups, k, seed)
        sizes = torch.bincount(found.assignment).double()
        of_cluster = torch.searchsorted(ids, found.group_of)
        shares = _sums(2 * sizes * (n[of_cluster] / sizes).log(), of_cluster, len(n))
        variance = found.inertia / ((n - k).clamp(min=1) * x.shape[1])
        score = n * x.shape[1] * variance.log() + shares + k * (x.shape[1] + 1) * n.log()
        scores.append(score if k == 1 else score.masked_fill(n <= k, torch.inf))
    return torch.stack(scores).argmin(0) + 1


def _check(x: Tensor, groups: Tensor) -> None:
    if x.ndim != 2 or len(x) == 0 or groups.shape != x.shape[:1]:
        raise UserError(
            f"x and groups must have shapes (N, D) and (N,) with N >= 1, got {tuple(x.shape)} and {tuple(groups.shape)}"
        )
    if groups.is_floating_point():
        raise UserError(f"groups must be integers, got {groups.dtype}")
    if not bool(x.isfinite().all()):
        raise UserError("the vectors contain NaN or infinite values; remove those rows")


def _per_group(k: int | Tensor, ids: Tensor) -> Tensor:
    """(G,) the number of clusters of each group."""
    wanted = k.to(ids.device) if isinstance(k, Tensor) else torch.full_like(ids, k, dtype=torch.long)
    if wanted.shape != ids.shape or wanted.is_floating_point() or not bool((wanted >= 1).all()):
        raise UserError(f"k must be an integer >= 1, or one for each of the {len(ids)} groups, got {k}")
    return wanted


def _start(x: Tensor, group: Tensor, sizes: Tensor, k: Tensor, seed: int) -> Tensor:
    """(C,) the initial centres, by group, drawn with probability ∝ squared distance to the nearest one so far."""
    place = _place_in_group(group, sizes)
    # (N,) squared distance to the nearest centre so far.
    nearest = torch.full((len(x),), torch.inf, dtype=torch.float64, device=x.device)
    seeds = []
    for step in range(int(k.max())):
        farthest = torch.zeros_like(sizes, dtype=torch.float64).scatter_reduce_(0, group, nearest, "amax")
        # Items of groups that need another centre and have distinct points left.
        items = ((k > step) & (farthest > 0))[group].nonzero().squeeze(1)
        if len(items) == 0:
            break
        unfinished, of_item = group[items].unique(return_inverse=True)
        weights = nearest[items] if step else torch.ones_like(nearest[items])
        least = nearest.new_full((len(unfinished),), torch.inf)
        chosen, after = torch.empty_like(unfinished), nearest[items]
        for draw in range(DRAWS if step else 1):
            arrival = _exponential(int(sizes.max()), (seed, step, draw)).to(x.device)[place[items]]
            drawn = items[_first_largest(weights / arrival, of_item, len(unfinished))]
            squares = torch.minimum(nearest[items], _squares(x, items, x, drawn[of_item]))
            inertia = _sums(squares, of_item, len(unfinished))
            better = inertia < least
            chosen, least = torch.where(better, drawn, chosen), torch.where(better, inertia, least)
            after = torch.where(better[of_item], squares, after)
        nearest[items] = after
        seeds.append(chosen)
    rows = torch.cat(seeds)
    return rows[group[rows].sort(stable=True).indices]


def _place_in_group(group: Tensor, sizes: Tensor) -> Tensor:
    """(N,) the number of earlier items in the same group."""
    order = group.sort(stable=True).indices
    starts = sizes.cumsum(0) - sizes
    return torch.empty_like(group).index_copy_(
        0, order, torch.arange(len(group), device=group.device) - starts[group[order]]
    )


def _exponential(n: int, key: tuple[int, int, int]) -> Tensor:
    """(n,) random numbers that depend only on the key; a larger n continues the sequence. All groups share them."""
    return torch.from_numpy(np.random.default_rng([part % 2**63 for part in key]).exponential(size=n))


def _nearest(x: Tensor, items: Tensor, group: Tensor, counts: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """The squared distances (M,) from these items to their group's nearest centroid, and the clusters (M,) of those."""
    first = counts.cumsum(0) - counts
    parts = []
    for rows in row_blocks(len(items), 16 * int(counts.max())):  # a pair takes about 64 bytes
        these = items[rows]
        choices = counts[group[these]]
        item = torch.repeat_interleave(choices)  # (pairs,) each item once per cluster of its group
        within = torch.arange(len(item), device=x.device) - (choices.cumsum(0) - choices)[item]
        cluster = first[group[these]][item] + within
        squares = _squares(x, these[item], centroids, cluster)
        best = _first_largest(-squares, item, len(these))
        parts.append((squares[best], cluster[best]))
    squares, nearest = (torch.cat(part) for part in zip(*parts, strict=True))
    return squares, nearest


def _fill_empty(cluster: Tensor, squares: Tensor, group: Tensor, counts: Tensor) -> Tensor:
    """Moves the farthest item of a group that is not alone in its cluster into each empty cluster; (M,) clusters."""
    of_cluster = torch.repeat_interleave(counts)
    present = torch.bincount(group, minlength=len(counts)) > 0
    while True:
        sizes = torch.bincount(cluster, minlength=len(of_cluster))
        empty = ((sizes == 0) & present[of_cluster]).nonzero().squeeze(1)
        if len(empty) == 0:
            return cluster
        groups, which = of_cluster[empty].unique(return_inverse=True)
        one_each = empty[_first_largest(torch.zeros_like(empty, dtype=torch.float64), which, len(groups))]
        farthest = _first_largest(squares.masked_fill(sizes[cluster] == 1, -1), group, len(counts))[groups]
        cluster = cluster.index_copy(0, farthest, one_each)


def _squares(x: Tensor, rows: Tensor, y: Tensor, others: Tensor) -> Tensor:
    """(pairs,) squared distances from x[rows] to y[others], by subtraction in float64; 0 only for coincident points."""
    blocks = row_blocks(len(rows), 4 * x.shape[1])
    return torch.cat([(x[rows[pairs]].double() - y[others[pairs]]).square_().sum(1) for pairs in blocks])


def _first_largest(values: Tensor, segment: Tensor, segments: int) -> Tensor:
    """(segments,) the first position of the largest value of each segment, among the values (n,); n if it is empty."""
    largest = values.new_full((segments,), -torch.inf).scatter_reduce_(0, segment, values, "amax")
    positions = torch.arange(len(values), device=values.device).masked_fill_(values < largest[segment], len(values))
    return torch.full_like(largest, len(values), dtype=torch.long).scatter_reduce_(0, segment, positions, "amin")


def _sums(values: Tensor, segment: Tensor, segments: int) -> Tensor:
    return values.new_zeros(segments).index_add_(0, segment, values)
