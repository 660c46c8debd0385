"""Neighbourhood components analysis (NCA).

Goldberger, Roweis, Hinton, Salakhutdinov: Neighbourhood Components Analysis, NIPS 2004, in the form that the magnet
paper compares with (Rippel et al. 2016, Eq. 8).

Both sums leave out the example itself, as in Goldberger et al.: its e⁰ = 1 would dominate them. An anchor alone in its
class has an empty numerator; it drops out, and the mean is over the others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nearkin.losses.batch import checked, classmates, full_precision, once_differentiable, positive_number
from nearkin.losses.distances import unit_length, widened


def nca_loss(embeddings: Tensor, labels: Tensor, scale: float = 1.0, normalize: bool = False) -> Tensor:
    """How unlikely an anchor is to pick one of its class, if it picks its neighbour by e^(−scale · distance²).

    Args:
        embeddings: (batch, dim).
        labels: (batch,) integers.
        scale: how sharply nearness counts; 1 in Eq. 8.
        normalize: whether embeddings are brought to unit length first.

    Returns:
        A scalar.

    >>> points = torch.tensor([[0.0], [1.0], [5.0], [6.0]])
    >>> near = nca_loss(points, torch.tensor([0, 0, 1, 1]))
    >>> far = nca_loss(points, torch.tensor([0, 1, 0, 1]))
    >>> bool(near < far)
    True
    """
    positive_number(scale=scale)
    embeddings, labels = checked(embeddings, labels)
    with full_precision(embeddings):
        points = unit_length(embeddings) if normalize else embeddings
        loss: Tensor = _NCA.apply(points, *classmates(labels), scale)  # type: ignore[no-untyped-call]
        return loss


class NCALoss(nn.Module):
    """NCA (Goldberger et al. 2004): the probability that a random near neighbour is of the same class.

    Needs at least two items of a class in a batch, and more than one class.

    >>> NCALoss(scale=16.0, normalize=True)
    NCALoss(scale=16.0, normalize=True)
    """

    def __init__(self, scale: float = 1.0, normalize: bool = False) -> None:
        super().__init__()
        positive_number(scale=scale)
        self.scale = scale
        self.normalize = normalize

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return nca_loss(embeddings, labels, self.scale, self.normalize)

    def extra_repr(self) -> str:
        return f"scale={self.scale}, normalize={self.normalize}"


class _NCA(torch.autograd.Function):
    """Written out because autograd would walk over the (batch, batch) matrix several times more."""

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, rows: Tensor, others: Tensor, scale: float) -> Tensor:
        points = widened(embeddings.detach())
        points = points - points.mean(dim=0)
        # −scale · distance² but for a constant per anchor, which cancels; the nearest other at 0.
        nearness = (2 * scale * points @ points.T).sub_(scale * points.square().sum(dim=1))
        lowest = torch.finfo(nearness.dtype).min
        nearness.fill_diagonal_(lowest)
        nearest = nearness.amax(dim=1, keepdim=True)
        of_class = (nearness.gather(1, rows) - nearest).where(others, lowest)
        shares = nearness.sub_(nearest).to(embeddings.dtype).exp_()
        total = shares.sum(dim=1)
        weight = others.any(dim=1).to(points.dtype)
        weight /= weight.sum().clamp(min=1)
        losses = total.log() - of_class.logsumexp(dim=1)
        pulls = of_class.softmax(dim=1) * weight[:, None]
        ctx.scale = scale
        ctx.save_for_backward(*(part.to(shares.dtype) for part in (points, shares, pulls, weight / total)), rows)
        return (losses * weight).sum().clamp(max=torch.finfo(embeddings.dtype).max).to(embeddings.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        points, shares, pulls, weight, rows = ctx.saved_tensors
        pushes = (shares * weight[:, None]).scatter_add_(1, rows, -pulls)  # rows sum to 0
        with full_precision(points):
            along = (pushes @ points).addmm_(pushes.T, points) - pushes.sum(dim=0)[:, None] * points
        return 2 * ctx.scale * gradient * along, None, None, None
