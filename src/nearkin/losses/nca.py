"""Neighbourhood components analysis (NCA).

Goldberger, Roweis, Hinton, Salakhutdinov: Neighbourhood Components Analysis, NIPS 2004, in the form used as a baseline
in the Magnet paper (Rippel et al. 2016, Eq. 8).

Both sums exclude the example itself, as in Goldberger et al.: its term e⁰ = 1 would dominate them. The mean excludes
anchors without positives, whose numerator is empty.
"""

from __future__ import annotations

import math
from typing import Any, Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from nearkin.losses.base import Loss
from nearkin.losses.batch import Labels, full_precision, once_differentiable, positive_number
from nearkin.losses.distances import widened
from nearkin.losses.pairs import Comparison, PairArguments, compared, positive_columns
from nearkin.losses.registry import register_loss

NEGLIGIBLE = -80.0  # e⁻⁸⁰ counts as 0: a CPU is slow with smaller numbers, which float32 stores with fewer digits


def nca_loss(
    embeddings: Tensor,
    labels: Labels,
    scale: float = 1.0,
    normalize: bool = False,
    **pairs: Unpack[PairArguments],
) -> Tensor:
    """−log of the probability that an anchor picks a neighbour of its own class, with weights e^(−scale · distance²).

    Args:
        embeddings: (batch, dim).
        labels: (batch,) integers.
        scale: factor of the squared distances; 1 in Eq. 8.
        normalize: scale embeddings to unit length first.
        pairs: ``indices_tuple``, ``ref_emb``, ``ref_labels``; see `Loss.forward`. The neighbour is
            picked among these pairs.

    Returns:
        A scalar.

    >>> points = torch.tensor([[0.0], [1.0], [5.0], [6.0]])
    >>> near = nca_loss(points, torch.tensor([0, 0, 1, 1]))
    >>> far = nca_loss(points, torch.tensor([0, 1, 0, 1]))
    >>> bool(near < far)
    True
    """
    positive_number(scale=scale)
    batch = compared(embeddings, labels, **pairs, normalize=normalize)
    with full_precision(embeddings):
        loss: Tensor = _NCA.apply(  # type: ignore[no-untyped-call]
            batch.embeddings, batch.references, batch, scale
        )
        return loss


@register_loss("nca")
class NCALoss(Loss):
    """NCA loss (Goldberger et al. 2004): makes it likely that a neighbour drawn by distance has the anchor's class.

    Needs two or more items per class in a batch, and more than one class.

    >>> NCALoss(scale=16.0, normalize=True)
    NCALoss(scale=16.0, normalize=True)
    """

    def __init__(self, scale: float = 1.0, normalize: bool = False) -> None:
        super().__init__()
        positive_number(scale=scale)
        self.scale = scale
        self.normalize = normalize

    def compute(self, embeddings: Tensor, labels: Labels, **pairs: Unpack[PairArguments]) -> Tensor:
        return nca_loss(embeddings, labels, self.scale, self.normalize, **pairs)

    def extra_repr(self) -> str:
        return f"scale={self.scale}, normalize={self.normalize}"


class _NCA(torch.autograd.Function):
    """NCA with its own backward pass, which reads the (batch, references) matrix fewer times than autograd would."""

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, references: Tensor | None, batch: Comparison, scale: float) -> Tensor:
        columns, valid = positive_columns(batch)
        others = widened((embeddings if references is None else references).detach())
        centre = others.mean(dim=0)
        others = others - centre
        points = others if references is None else widened(embeddings.detach()) - centre
        # −scale · distance², up to a constant per anchor, which cancels. It is chosen to move the nearest other to 0.
        nearness = torch.addmm(others.square().sum(dim=1), points, others.T, beta=-scale, alpha=2 * scale)
        lowest = torch.finfo(nearness.dtype).min
        if batch.chosen is not None:
            nearness.masked_fill_(~(batch.positive | batch.negative), lowest)
        elif references is None:
            nearness.fill_diagonal_(lowest)
        nearness.sub_(nearness.amax(dim=1, keepdim=True))
        of_positives = nearness.gather(1, columns).masked_fill_(~valid, lowest)
        shares = F.threshold(nearness.to(embeddings.dtype), NEGLIGIBLE, -math.inf, inplace=True).exp_()
        total = shares.sum(dim=1, keepdim=True)
        weight = valid.any(dim=1, keepdim=True).to(shares.dtype)
        weight /= weight.sum().clamp(min=1)
        of_class = of_positives.logsumexp(dim=1, keepdim=True)
        losses, pulls = total.log() - of_class, (of_positives - of_class).exp_().mul_(weight)
        ctx.scale = scale
        saved = (others, pulls, weight / total, *(() if references is None else (points,)))
        ctx.save_for_backward(shares, columns, *(part.to(shares.dtype) for part in saved))
        return (losses * weight).sum().clamp(max=torch.finfo(embeddings.dtype).max).to(embeddings.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        shares, columns, others, pulls, weight, *points = ctx.saved_tensors
        pushes = (shares * weight).scatter_add_(1, columns, -pulls)  # rows sum to 0
        factor = 2 * ctx.scale * gradient
        with full_precision(others):
            grad_others = torch.addmm(pushes.sum(dim=0)[:, None] * others, pushes.T, *(points or [others]), beta=-1)
            if points:
                return factor * (pushes @ others), factor * grad_others, None, None
            return grad_others.addmm_(pushes, others).mul_(factor), None, None, None
