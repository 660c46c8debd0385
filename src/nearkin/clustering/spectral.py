"""Normalised spectral clustering of points by their inner products.

Law, Urtasun, Zemel: Deep Spectral Clustering Learning, ICML 2017, Algorithm 2 and section 4.2.

The left singular vectors come from a QR decomposition without Q and the singular values of its small factor R, in
float64. Singular values count as 0 where the rounding of the input alone could have made them: each number of x is
uncertain by its last digit, so all of them together by at most ε · |x|, the length of x as one vector.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.clustering.kmeans import KMeansResult, kmeans
from nearkin.errors import UserError


def spectral_embedding(x: Tensor, leading: int | None = None) -> Tensor:
    """Points as directions in which no linear map of x can be seen (Algorithm 2, lines 1–4).

    The rows of U, M = U S Vᵀ the centred points, scaled to length 1. Shifts and invertible linear maps of x only turn
    them. Needs many more points than dimensions: up to N = D + 1 points in general position, all are equally far apart;
    the ``leading`` columns alone, of the largest singular values, do not lose what the points have in common.

    Args:
        x: (N, D) floating point, at least one point.
        leading: how many columns of U to keep; None for all, as in Algorithm 2.

    Returns:
        (N, r) in the precision of x, at least float32; r is the rank of the centred points (``leading`` at most), or 1
        where they are all equal. The row of a point in the very centre stays zero.

    >>> spectral_embedding(torch.tensor([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]])).abs().tolist()
    [[1.0], [0.0], [1.0]]
    """
    if x.ndim != 2 or 0 in x.shape:
        raise UserError(f"spectral clustering needs points of shape (N, D), at least one, not {tuple(x.shape)}")
    if not bool(x.isfinite().all()):
        raise UserError("the vectors contain NaN or infinite values; leave those rows out")
    dtype = torch.promote_types(x.dtype, torch.float32)
    points = x.detach().double()
    uncertain = torch.finfo(dtype).eps * points.norm()
    points = points - points[0]  # exactly 0 where all points are equal, which the mean may miss by a digit
    points -= points.mean(0)
    _, singular, right = torch.linalg.svd(torch.linalg.qr(points, mode="r").R, full_matrices=False)
    rounding = max(x.shape) * torch.finfo(torch.float64).eps
    kept = singular > torch.maximum(uncertain, rounding * singular[0])
    rank = max(1, min(int(kept.sum()), len(singular) if leading is None else leading))
    basis = points @ (right[:rank].T * torch.where(kept, 1 / singular, 0.0)[:rank])
    lengths = basis.norm(dim=1, keepdim=True)
    return torch.where(lengths > rounding, basis / lengths, 0.0).to(dtype)


def spectral_partition(x: Tensor, k: int, seed: int = 0, iterations: int = 100) -> KMeansResult:
    """k clusters of the points x (N, D) by k-means in their spectral embedding (Algorithm 2); see `kmeans`.

    Centroids and inertia are those of the embedding.

    >>> cross = torch.tensor([[9.0, 0.0], [8.0, 0.0], [0.0, 0.1], [0.0, 0.2], [-9.0, -0.1], [-8.0, -0.2]])
    >>> a, b, c, d, e, f = spectral_partition(cross, k=3).assignment.tolist()
    >>> a == b, c == d, e == f, len({a, c, e})
    (True, True, True, 3)
    """
    return kmeans(spectral_embedding(x), k, seed, iterations)
