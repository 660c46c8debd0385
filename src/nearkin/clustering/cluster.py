"""Clusters embeddings with a named algorithm, in one call."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearkin.clustering.facilities import facility_location
from nearkin.clustering.kmeans import kmeans
from nearkin.clustering.spectral import spectral_partition
from nearkin.errors import UserError, unknown_name


def cluster(embeddings: Tensor | npt.ArrayLike, k: int, how: str = "kmeans", seed: int = 0) -> npt.NDArray[np.int64]:
    """Groups embeddings into k clusters, without labels.

    Args:
        embeddings: (n, dim), a tensor on any device or an array.
        k: number of clusters, at most n. The result has fewer if fewer than k points are distinct.
        how: the algorithm. "kmeans": k-means. "spectral": k-means on the left singular vectors, which do not depend on
            linear maps of the points (Law et al. 2017, Algorithm 2); needs many more points than dimensions.
            "medoids": chooses k of the points greedily and by exchange to minimise the sum of distances to them (Song
            et al. 2017, without the margin). "agglomerative": Ward linkage. The last two keep all n × n distances in
            memory, so use them for thousands of points, not for a hundred thousand.
        seed: random seed of "kmeans" and "spectral"; the other algorithms are deterministic.

    Returns:
        (n,) the cluster of each row, 0…k−1.

    >>> for how in HOW:
    ...     a, b, c, d = cluster([[0.0], [1.0], [9.0], [10.0]], k=2, how=how)
    ...     assert a == b != c == d
    """
    if how not in HOW:
        raise unknown_name("clustering algorithm", how, HOW)
    points = embeddings if isinstance(embeddings, Tensor) else _tensor(np.asarray(embeddings))
    if points.ndim != 2 or 0 in points.shape:
        raise UserError(f"embeddings must have shape (n, dim), got {tuple(points.shape)}")
    if not _is_integer(k) or not 1 <= k <= len(points):
        raise UserError(f"k must be an integer from 1 to {len(points)}, the number of embeddings, got {k!r}")
    points = points.detach() if points.is_floating_point() else points.double()
    broken = int((~points.isfinite().all(1)).sum())
    if broken:
        raise UserError(f"{broken} of {len(points)} embeddings contain NaN or infinite values; remove those rows")
    return np.asarray(HOW[how](points, int(k), seed), dtype=np.int64)


def _is_integer(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and bool(value % 1 == 0)


def _tensor(array: npt.NDArray[np.generic]) -> Tensor:
    if array.dtype.kind not in "fiu":
        raise UserError(f"embeddings must be numbers, got {array.dtype}")
    return torch.from_numpy(array.copy())  # torch cannot read reversed arrays, and warns about read-only ones


def _kmeans(points: Tensor, k: int, seed: int) -> Tensor:
    return kmeans(points, k, seed).assignment.cpu()


def _spectral(points: Tensor, k: int, seed: int) -> Tensor:
    return spectral_partition(points, k, seed).assignment.cpu()


def _medoids(points: Tensor, k: int, seed: int) -> Tensor:  # noqa: ARG001
    points = points.double()
    distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    return facility_location(distances, torch.zeros(len(points), dtype=torch.int64), k, gamma=0.0).assignment.cpu()


def _agglomerative(points: Tensor, k: int, seed: int) -> npt.NDArray[np.int64]:  # noqa: ARG001
    from sklearn.cluster import AgglomerativeClustering

    if len(points) == 1:  # scikit-learn needs at least two
        return np.zeros(1, np.int64)
    assignment: npt.NDArray[np.int64] = AgglomerativeClustering(k).fit_predict(points.double().cpu().numpy())
    return assignment


HOW: dict[str, Callable[[Tensor, int, int], Tensor | npt.NDArray[np.int64]]] = {
    "kmeans": _kmeans,
    "spectral": _spectral,
    "medoids": _medoids,
    "agglomerative": _agglomerative,
}
