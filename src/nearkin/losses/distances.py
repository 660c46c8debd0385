"""Distances within a batch or to references: as fast as a matrix product, as accurate as subtraction.

|a − b|² = |a|² + |b|² − 2 a·b loses half of its digits if the points are close, and close points matter most to a loss.
Computed in float64 around the batch's mean, the remaining digits match the precision of float32. Two points closer than
about 10⁻⁷ of their distance from the mean count as coincident: their distance is 0 and has no gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

BLOCK_ELEMENTS = 2**16  # half a megabyte, which stays in the cache while a block is read several times
# Squared distances below this share of the squared lengths are rounding errors: such points coincide.
COINCIDENT = 64 * torch.finfo(torch.float64).eps


def pairwise_distances(embeddings: Tensor, references: Tensor | None = None) -> Tensor:
    """Euclidean distances from (batch, dim) to (references, dim), or within the batch; (batch, references).

    The gradient of coincident points is zero.

    >>> pairwise_distances(torch.tensor([[0.0, 0.0], [3.0, 4.0]])).tolist()
    [[0.0, 5.0], [5.0, 0.0]]
    >>> pairwise_distances(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.tensor([[3.0, 0.0]])).tolist()
    [[3.0], [4.0]]
    """
    distances: Tensor = _Distances.apply(embeddings, references, False)  # type: ignore[no-untyped-call]
    return distances


def pairwise_squared_distances(embeddings: Tensor, references: Tensor | None = None) -> Tensor:
    """Squared Euclidean distances from (batch, dim) to (references, dim), or within the batch; (batch, references).

    >>> pairwise_squared_distances(torch.tensor([[0.0, 0.0], [3.0, 4.0]])).tolist()
    [[0.0, 25.0], [25.0, 0.0]]
    """
    distances: Tensor = _Distances.apply(embeddings, references, True)  # type: ignore[no-untyped-call]
    return distances


def unit_length(embeddings: Tensor) -> Tensor:
    """Divides rows by their length. A row of length 0 stays 0 and gets no gradient.

    >>> unit_length(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    unit, _ = _UnitLength.apply(embeddings)  # type: ignore[no-untyped-call]
    result: Tensor = unit
    return result


def widened(embeddings: Tensor) -> Tensor:
    """Converts embeddings to float64 for intermediate results; to float32 on Apple GPUs, which lack float64.

    >>> pairwise_distances(widened(torch.zeros(2, 3))).dtype
    torch.float64
    """
    return embeddings.to(_wide(embeddings))


def _wide(embeddings: Tensor) -> torch.dtype:
    return torch.float32 if embeddings.device.type == "mps" else torch.float64


class _UnitLength(torch.autograd.Function):
    """Rows of unit length, and their lengths before. A fifth of the operations that autograd would need."""

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor) -> tuple[Tensor, Tensor]:
        # In float64, because squares of very small or very large coordinates underflow or overflow in float32.
        length = torch.linalg.vector_norm(embeddings, dim=1, keepdim=True, dtype=_wide(embeddings))
        length = length.to(embeddings.dtype)
        length.masked_fill_(length < torch.finfo(length.dtype).tiny, torch.inf)
        unit = embeddings / length
        ctx.save_for_backward(unit, length)  # outputs, so that autograd can differentiate the gradient again
        ctx.set_materialize_grads(False)
        return unit, length

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, of_length: Tensor | None) -> Tensor | None:
        unit, length = ctx.saved_tensors
        found = None
        if gradient is not None:
            radial = (gradient * unit).sum(dim=1, keepdim=True)
            found = torch.addcmul(gradient, unit, radial, value=-1) / length
        if of_length is not None:  # in a second derivative
            found = of_length * unit if found is None else found + of_length * unit
        return found


class _Distances(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, references: Tensor | None, squared: bool) -> Tensor:
        others = widened((embeddings if references is None else references).detach())
        centre = others.mean(dim=0)
        others = others - centre
        points = others if references is None else widened(embeddings.detach()) - centre
        other_norms = others.square().sum(dim=1)
        norms = other_norms if references is None else points.square().sum(dim=1)
        other_rounding = COINCIDENT * other_norms
        rounding = other_rounding if references is None else COINCIDENT * norms
        distances = embeddings.new_empty(len(points), len(others))
        for rows in _row_blocks(points, others):
            block = torch.addmm(other_norms, points[rows], others.T, alpha=-2).add_(norms[rows, None])
            block.masked_fill_(block <= torch.maximum(rounding[rows, None], other_rounding), 0.0)
            distances[rows] = (block if squared else block.sqrt_()).clamp_(max=torch.finfo(embeddings.dtype).max)
        if references is None:
            distances.fill_diagonal_(0.0)
        ctx.squared = squared
        ctx.save_for_backward(embeddings, references, points, others, distances)
        return distances

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        embeddings, references, points, others, distances = ctx.saved_tensors
        if torch.is_grad_enabled() and not is_compiling():  # create_graph=True
            return *_differentiable_gradients(embeddings, references, gradient, ctx.squared), None
        # Transposed as a whole: torch reads the transposed parts of a matrix several times as slowly.
        flipped = gradient.T.contiguous() if references is None else None
        grad_embeddings = torch.empty_like(points)
        grad_references = None if references is None else torch.zeros_like(others)
        for rows in _row_blocks(points, others):
            weights = gradient[rows].clone() if flipped is None else flipped[rows].add_(gradient[rows])
            if ctx.squared:
                weights.mul_(2)
            else:
                weights.div_(distances[rows]).masked_fill_(distances[rows] == 0, 0.0)
            wide = weights.to(points.dtype)
            grad_embeddings[rows] = torch.addmm(wide.sum(dim=1, keepdim=True) * points[rows], wide, others, alpha=-1)
            if grad_references is not None:
                grad_references += torch.addmm(wide.sum(dim=0)[:, None] * others, wide.T, points[rows], alpha=-1)
        if grad_references is not None:
            grad_references = grad_references.to(gradient.dtype)
        return grad_embeddings.to(gradient.dtype), grad_references, None


def _differentiable_gradients(
    embeddings: Tensor, references: Tensor | None, gradient: Tensor, squared: bool
) -> tuple[Tensor, Tensor | None]:
    """The gradients of `_Distances.backward`, computed with operations that autograd can differentiate again."""
    weights = widened(gradient + gradient.T if references is None else gradient)
    if squared:
        weights = 2 * weights
    else:
        distances = widened(pairwise_distances(embeddings, references))
        weights = (weights / torch.where(distances > 0, distances, 1.0)).where(distances > 0, 0.0)
    others = widened(embeddings if references is None else references)
    centre = others.detach().mean(dim=0)
    points, others = widened(embeddings) - centre, others - centre
    grad_embeddings = (weights.sum(dim=1, keepdim=True) * points - weights @ others).to(gradient.dtype)
    if references is None:
        return grad_embeddings, None
    return grad_embeddings, (weights.sum(dim=0)[:, None] * others - weights.T @ points).to(gradient.dtype)


def _row_blocks(points: Tensor, others: Tensor) -> list[slice]:
    """Splits the rows of the distance matrix into slices that fit into the CPU cache; one slice on other devices."""
    blocked = points.device.type == "cpu" and not is_compiling()
    step = max(16, BLOCK_ELEMENTS // len(others)) if blocked else len(points)
    return [slice(start, start + step) for start in range(0, len(points), step)]
