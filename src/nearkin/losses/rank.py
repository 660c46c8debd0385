"""Rank approximation loss (NRA): nonlinear approximations of ranks instead of distances.

Schall, Barthel, Hezel, Jung: Deep Metric Learning using Similarities from Nonlinear Rank Approximations, 2019,
Eq. 5–13. The paper does not define three cases. Here, if an anchor has no positives (or no negatives), that term is 0.
If all other items are at the same distance from an anchor, both of its terms are 0. The mean is always over all
anchors.

``gradient_everywhere`` is not in the paper. In the paper's form, if an anchor's nearest item is a negative, its rank r⁻
is 0 at any distance: this term has its largest loss, but a gradient of 0. The same holds if an anchor's farthest item
is a positive. With ``gradient_everywhere``, r⁻ is measured from the nearest positive and r⁺ up to the farthest
negative. For such anchors, ranks can then be outside 0…1; for all others they do not change. Where r⁻ is below ¼ (or r⁺
above ¾), the term continues along its tangent at that point, so its gradient does not vanish. If an anchor has no
positives (or no negatives), there is nothing to measure from, and both of its terms are 0.
"""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor

from nearkin.losses.base import Loss
from nearkin.losses.batch import Labels, full_precision, positive_number
from nearkin.losses.distances import pairwise_distances, widened
from nearkin.losses.pairs import Comparison, PairArguments, compared
from nearkin.losses.registry import register_loss

LINEAR_BELOW = 0.25  # with ``gradient_everywhere``, a term is linear below this gap


def rank_approximation_loss(
    embeddings: Tensor,
    labels: Labels,
    alpha: float = 4.0,
    eps: float = 1e-4,
    gradient_everywhere: bool = False,
    **pairs: Unpack[PairArguments],
) -> Tensor:
    """Pulls each anchor's farthest positive closer and pushes its nearest negative away, by approximated rank.

    An anchor's distances are mapped linearly to ranks in 0…1: its nearest item has rank 0, its farthest item rank 1. A
    sigmoid-like curve maps ranks to similarities, and the loss uses those of the farthest positive and the nearest
    negative.

    If an anchor's nearest item is a negative, or its farthest item a positive, that term has no gradient unless
    ``gradient_everywhere`` is set. The pair can still get a gradient from other anchors of the batch.

    Args:
        embeddings: (batch, dim), not normalised in the paper.
        labels: (batch,) integers.
        alpha: α in Eq. 10, the steepness of the curve.
        eps: ε in Eq. 13, bounds each term by −log ε unless ``gradient_everywhere`` is set.
        gradient_everywhere: also give a gradient to anchors whose nearest item is a negative or whose farthest item is
            a positive.
        pairs: ``indices_tuple``, ``ref_emb``, ``ref_labels``; see `Loss.forward`. Ranks are computed
            among these pairs.

    Returns:
        A scalar.

    >>> points = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> near = rank_approximation_loss(points, torch.tensor([0, 0, 1, 1]))
    >>> far = rank_approximation_loss(points, torch.tensor([0, 1, 0, 1]))
    >>> bool(near < far)
    True
    """
    positive_number(alpha=alpha, eps=eps)
    batch = compared(embeddings, labels, **pairs)
    with full_precision(embeddings):
        masks = torch.stack([batch.positive, batch.negative])
        present = masks.any(dim=2)  # whether an anchor has positives and negatives: (2, batch)
        nearest, farthest = _extremes(batch, masks, present)
        # Without positives (or negatives), their distance is 0 and must not be the lowest.
        lowest = torch.where(present.all(dim=0), nearest.amin(dim=0), nearest.amax(dim=0))
        spread = farthest.amax(dim=0) - lowest
        # Not only > 0: dividing by a subnormal spread would give an infinite gradient.
        ranked = spread > torch.finfo(spread.dtype).tiny
        if gradient_everywhere:
            begin, end, term, ranked = nearest[0], farthest[1], _linear_term, ranked & present.all(dim=0)
        else:
            begin, end, term = lowest, farthest.amax(dim=0), _term
        # s⁺ = 1 − w(r⁺) = w(1 − r⁺), because the curve is point-symmetric; so both terms are −log w(gap).
        gaps = torch.stack([end - farthest[0], nearest[1] - begin]) / torch.where(ranked, spread, 1.0)  # 1 − r⁺ and r⁻
        terms = torch.where(ranked & present, term(gaps, alpha, eps), 0.0)
        return terms.sum(dim=0).mean().to(batch.embeddings.dtype)


@register_loss("rank")
class RankApproximationLoss(Loss):
    """Rank approximation loss, NRA (Schall et al. 2019): uses the ranks of each anchor's two hardest pairs.

    Needs several items per class in a batch (for example 16 classes × 8 items).

    >>> loss = RankApproximationLoss()(torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))
    >>> loss.shape
    torch.Size([])
    """

    def __init__(self, alpha: float = 4.0, eps: float = 1e-4, gradient_everywhere: bool = False) -> None:
        super().__init__()
        positive_number(alpha=alpha, eps=eps)
        self.alpha = alpha
        self.eps = eps
        self.gradient_everywhere = gradient_everywhere

    def compute(self, embeddings: Tensor, labels: Labels, **pairs: Unpack[PairArguments]) -> Tensor:
        return rank_approximation_loss(embeddings, labels, self.alpha, self.eps, self.gradient_everywhere, **pairs)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}, eps={self.eps}, gradient_everywhere={self.gradient_everywhere}"


def _extremes(batch: Comparison, masks: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """Distances of each anchor to the nearest and the farthest item of each mask, (2, batch) each; 0 if it has none.

    In float64, because ranks are differences of distances and 1/ε magnifies rounding errors.
    """
    references = None if batch.references is None else batch.references.detach()
    distances = pairwise_distances(batch.embeddings.detach(), references)
    others = torch.stack([distances.where(masks, math.inf).argmin(dim=2), distances.where(masks, -1.0).argmax(dim=2)])
    apart = widened(batch.embeddings) - widened(batch.others)[others]
    found = torch.linalg.vector_norm(apart, dim=3).where(present, 0.0)
    return found[0], found[1]


def _term(rank: Tensor, alpha: float, eps: float) -> Tensor:
    """−log(w(r) + ε), Eq. 13."""
    return -torch.log(_transfer(rank, alpha) + eps)


def _linear_term(rank: Tensor, alpha: float, eps: float) -> Tensor:
    """`_term` for ranks of ¼ or more; below ¼, its tangent at ¼."""
    height = 0.5 * (2 * LINEAR_BELOW) ** alpha + eps
    slope = alpha * (2 * LINEAR_BELOW) ** (alpha - 1) / height
    tangent = slope * (LINEAR_BELOW - rank) - math.log(height)
    return torch.where(rank < LINEAR_BELOW, tangent, _term(rank.clamp(min=LINEAR_BELOW), alpha, eps))


def _transfer(rank: Tensor, alpha: float) -> Tensor:
    """w(r; α), Eq. 10, for ranks of shape (batch,): ½ (2r)^α up to ½, and point-symmetric around it.

    No gradient at 0 and 1: there, both distances belong to the same pair, and autograd would subtract two equal
    large numbers (up to 1/ε).
    """
    lower = rank < 0.5
    folded = torch.where(lower, rank, 1 - rank)
    # The clamp bounds the slope near 0, which is infinite for α < 1.
    half = torch.where(folded > 0, 0.5 * (2 * folded.clamp(min=1e-12)) ** alpha, 0.0)
    return torch.where(lower, half, 1 - half)
