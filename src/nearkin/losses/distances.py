"""The distances within a batch: as fast as a matrix product, and as exact as differences squared one by one.

|a − b|² = |a|² + |b|² − 2 a·b loses half of the digits where points lie close together, which is where losses look.
In float64, around the batch's mean, half of the digits are about those of float32: distances of float32 embeddings
are right to their last digits but for points that almost coincide, and two points nearer than about 10⁻⁷ of their
distance from the mean do coincide: their distance is 0 and has no gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CACHED = 2**16  # elements of a block: its several passes then stay within half a megabyte
# Squared distances below this share of the squared lengths are rounding, not distance: such points coincide.
COINCIDENT = 64 * torch.finfo(torch.float64).eps


def pairwise_distances(embeddings: Tensor) -> Tensor:
    """Euclidean distances within a batch, (batch, dim) to (batch, batch).

    The gradient at coincident points is zero.

    >>> pairwise_distances(torch.tensor([[0.0, 0.0], [3.0, 4.0]])).tolist()
    [[0.0, 5.0], [5.0, 0.0]]
    """
    distances: Tensor = _Distances.apply(embeddings, False)  # type: ignore[no-untyped-call]
    return distances


def pairwise_squared_distances(embeddings: Tensor) -> Tensor:
    """Squared Euclidean distances within a batch, (batch, dim) to (batch, batch).

    >>> pairwise_squared_distances(torch.tensor([[0.0, 0.0], [3.0, 4.0]])).tolist()
    [[0.0, 25.0], [25.0, 0.0]]
    """
    distances: Tensor = _Distances.apply(embeddings, True)  # type: ignore[no-untyped-call]
    return distances


def unit_length(embeddings: Tensor) -> Tensor:
    """Rows divided by their length; a zero row (or one shorter than numbers can tell) becomes 0, without gradient.

    >>> unit_length(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    # In float64, the squares of very small and very large coordinates do not leave the range of numbers.
    length = widened(embeddings).norm(dim=1, keepdim=True).to(embeddings.dtype)
    return embeddings / torch.where(length >= torch.finfo(length.dtype).tiny, length, torch.inf)


def widened(embeddings: Tensor) -> Tensor:
    """The embeddings in float64, for what must not be rounded on the way; float32 on Apple's GPUs, which have no more.

    >>> pairwise_distances(widened(torch.zeros(2, 3))).dtype
    torch.float64
    """
    return embeddings.to(torch.float32 if embeddings.device.type == "mps" else torch.float64)


class _Distances(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, squared: bool) -> Tensor:
        points = widened(embeddings.detach())
        points = points - points.mean(dim=0)
        norms = points.square().sum(dim=1)
        distances = embeddings.new_empty(len(points), len(points))
        for rows in _row_blocks(points):
            block = torch.addmm(norms, points[rows], points.T, alpha=-2).add_(norms[rows, None])
            block.masked_fill_(block <= COINCIDENT * torch.maximum(norms[rows, None], norms), 0.0)
            distances[rows] = (block if squared else block.sqrt_()).clamp_(max=torch.finfo(embeddings.dtype).max)
        distances.fill_diagonal_(0.0)
        ctx.squared = squared
        ctx.save_for_backward(embeddings, points, distances)
        return distances

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        embeddings, points, distances = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True
            return _slope(embeddings, gradient, ctx.squared), None
        along = torch.empty_like(points)
        for rows in _row_blocks(points):
            weights = gradient[rows] + gradient[:, rows].T
            if ctx.squared:
                weights.mul_(2)
            else:
                weights.div_(distances[rows]).masked_fill_(distances[rows] == 0, 0.0)
            wide = weights.to(points.dtype)
            along[rows] = wide.sum(dim=1, keepdim=True) * points[rows] - wide @ points
        return along.to(gradient.dtype), None


def _slope(embeddings: Tensor, gradient: Tensor, squared: bool) -> Tensor:
    """The same gradient, of operations that can be differentiated again."""
    weights = widened(gradient + gradient.T)
    if squared:
        weights = 2 * weights
    else:
        distances = widened(pairwise_distances(embeddings))
        weights = (weights / torch.where(distances > 0, distances, 1.0)).where(distances > 0, 0.0)
    points = widened(embeddings)
    points = points - points.detach().mean(dim=0)
    return (weights.sum(dim=1, keepdim=True) * points - weights @ points).to(gradient.dtype)


def _row_blocks(points: Tensor) -> list[slice]:
    """Rows of the distance matrix that fit into a processor's cache together; all of them on other devices."""
    step = max(16, CACHED // len(points)) if points.device.type == "cpu" else len(points)
    return [slice(start, start + step) for start in range(0, len(points), step)]
