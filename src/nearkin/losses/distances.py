"""The distances within a batch: as fast as a matrix product, and as exact as differences squared one by one.

|a − b|² = |a|² + |b|² − 2 a·b loses half of the digits where points lie close together, which is where losses look.
In float64, around the batch's mean, half of the digits are more than float32 holds: distances and gradients of
float32 embeddings are right to their last digits, also where points nearly coincide.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Squared distances below this share of the squared lengths are rounding, not distance: such points coincide.
COINCIDENT = 64 * torch.finfo(torch.float64).eps


def pairwise_distances(embeddings: Tensor) -> Tensor:
    """Euclidean distances within a batch, (batch, dim) to (batch, batch), exactly symmetric.

    The gradient at coincident points is zero.

    >>> pairwise_distances(torch.tensor([[0.0, 0.0], [3.0, 4.0]])).tolist()
    [[0.0, 5.0], [5.0, 0.0]]
    """
    distances: Tensor = _Distances.apply(embeddings, False)  # type: ignore[no-untyped-call]
    return distances


def pairwise_squared_distances(embeddings: Tensor) -> Tensor:
    """Squared Euclidean distances within a batch, (batch, dim) to (batch, batch), exactly symmetric.

    >>> pairwise_squared_distances(torch.tensor([[0.0, 0.0], [3.0, 4.0]])).tolist()
    [[0.0, 25.0], [25.0, 0.0]]
    """
    distances: Tensor = _Distances.apply(embeddings, True)  # type: ignore[no-untyped-call]
    return distances


def unit_length(embeddings: Tensor) -> Tensor:
    """Rows divided by their length; a zero row stays zero and gets no gradient.

    >>> unit_length(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    # Scaled first: the square of a very small or very large coordinate would leave float32.
    largest = embeddings.detach().abs().amax(dim=1, keepdim=True)
    embeddings = embeddings / torch.where(largest > 0, largest, torch.inf)
    length = embeddings.norm(dim=1, keepdim=True)
    return embeddings / torch.where(length > 0, length, torch.inf)


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
        products = points @ points.T
        norms = products.diagonal()
        distances = (norms[:, None] + norms[None, :]).sub_(products).sub_(products.T)
        distances.masked_fill_(distances <= COINCIDENT * torch.maximum(norms[:, None], norms[None, :]), 0.0)
        distances.fill_diagonal_(0.0)
        if not squared:
            distances.sqrt_()
        ctx.squared = squared
        distances = distances.to(embeddings.dtype)
        ctx.save_for_backward(points, distances)
        return distances

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        points, distances = ctx.saved_tensors
        weights = gradient + gradient.T
        if ctx.squared:
            weights = 2 * weights
        else:
            weights = torch.where(distances > 0, weights / distances, 0.0)
        wide = weights.to(points.dtype)
        along = wide.sum(dim=1, keepdim=True) * points - wide @ points
        return along.to(gradient.dtype), None
