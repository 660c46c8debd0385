"""Normalised spectral clustering of points by their inner products.

Law, Urtasun, Zemel: Deep Spectral Clustering Learning, ICML 2017, Algorithm 2 and section 4.2.

The left singular vectors are computed in float64, from the SVD of the factor R of a QR decomposition. Singular values
that could be rounding errors of the input count as 0: each number in x has a relative error of up to ε, so a singular
value has an error of at most ε · |x|, where |x| is the Frobenius norm.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.clustering.kmeans import KMeansResult, kmeans
from nearkin.errors import UserError


def spectral_embedding(x: Tensor, leading: int | None = None) -> Tensor:
    """The left singular vectors of the centred points, with rows of unit length (Algorithm 2, lines 1–4).

    These are the rows of U, where U S Vᵀ are the centred points. Shifts and invertible linear maps of x only rotate
    them. Use many more points than dimensions: up to N = D + 1 points in general position are all equally far apart.
    ``leading`` keeps the columns with the largest singular values, which avoids this.

    Args:
        x: (N, D) floating point, at least one point.
        leading: number of columns of U to keep; None keeps all, as in Algorithm 2.

    Returns:
        (N, r) in the precision of x, at least float32. r is the rank of the centred points, at most ``leading``, or 1
        if all points are equal. The row of a point exactly at the mean is zero.

    >>> spectral_embedding(torch.tensor([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]])).abs().tolist()
    [[1.0], [0.0], [1.0]]
    """
    if x.ndim != 2 or 0 in x.shape:
        raise UserError(f"x must have shape (N, D) with N, D >= 1, got {tuple(x.shape)}")
    if not bool(x.isfinite().all()):
        raise UserError("the vectors contain NaN or infinite values; remove those rows")
    dtype = torch.promote_types(x.dtype, torch.float32)
    points = x.detach().double()
    uncertain = torch.finfo(dtype).eps * points.norm()
    points = points - points[0]  # exactly 0 if all points are equal, even where the mean would be rounded
    points -= points.mean(0)
    _, singular, right = torch.linalg.svd(torch.linalg.qr(points, mode="r").R, full_matrices=False)
    rounding = max(x.shape) * torch.finfo(torch.float64).eps
    kept = singular > torch.maximum(uncertain, rounding * singular[0])
    rank = max(1, min(int(kept.sum()), len(singular) if leading is None else leading))
    basis = points @ (right[:rank].T * torch.where(kept, 1 / singular, 0.0)[:rank])
    lengths = basis.norm(dim=1, keepdim=True)
    return torch.where(lengths > rounding, basis / lengths, 0.0).to(dtype)


def spectral_partition(x: Tensor, k: int, seed: int = 0, iterations: int = 100) -> KMeansResult:
    """Clusters points x (N, D) by k-means on their spectral embedding (Algorithm 2); see `kmeans`.

    Centroids and inertia are in the spectral embedding.

    >>> cross = torch.tensor([[9.0, 0.0], [8.0, 0.0], [0.0, 0.1], [0.0, 0.2], [-9.0, -0.1], [-8.0, -0.2]])
    >>> a, b, c, d, e, f = spectral_partition(cross, k=3).assignment.tolist()
    >>> a == b, c == d, e == f, len({a, c, e})
    (True, True, True, 3)
    """
    return kmeans(spectral_embedding(x), k, seed, iterations)
