"""Nonlinear rank approximation (NRA).

Schall, Barthel, Hezel, Jung: Deep Metric Learning using Similarities from Nonlinear Rank Approximations, 2019,
Eq. 5–13. The paper leaves three cases open; here an anchor without positives (or without negatives) drops that term,
an anchor with all others at one distance drops both, and the mean is still taken over all anchors.

``gradient_everywhere`` is not in the paper, whose form has no gradient where it errs most: an anchor whose nearest
point of all is a negative measures that distance from itself (r⁻ = 0 whatever the distance is), and the same holds
where the farthest point of all is a positive. With it, r⁻ counts from the nearest positive and r⁺ up to the farthest
negative, which is the same elsewhere; ranks outside 0…1 say how wrong the order is. From ¼ before the wrong end on,
each term is its tangent at ¼, so that all such pairs are moved firmly. An anchor without positives (or without
negatives) has nothing to count from and drops both terms.
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

STRAIGHT_BELOW = 0.25  # the gap below which a term is straight with ``gradient_everywhere``


def rank_approximation_loss(
    embeddings: Tensor,
    labels: Labels,
    alpha: float = 4.0,
    eps: float = 1e-4,
    gradient_everywhere: bool = False,
    **pairs: Unpack[PairArguments],
) -> Tensor:
    """Pulls in each anchor's farthest positive and pushes off its nearest negative, by approximated rank.

    Every distance of an anchor is mapped linearly to a rank in 0…1 (its nearest other point 0, its farthest 1), ranks
    to similarities by a sigmoid-like curve, and the two hardest similarities to a loss.

    An anchor whose nearest point of all is a negative gets the full loss for it but, unless ``gradient_everywhere``, no
    gradient from that term; other anchors of the batch still see the pair.

    Args:
        embeddings: (batch, dim), not normalised in the paper.
        labels: (batch,) integers.
        alpha: α in Eq. 10, the steepness of the curve.
        eps: ε in Eq. 13, bounds each term by −log ε unless ``gradient_everywhere``.
        gradient_everywhere: whether a term has a gradient also where the nearest point of all is a negative or the
            farthest a positive.
        pairs: ``indices_tuple``, ``ref_emb``, ``ref_labels``; see `nearkin.losses.pairs.compared`. Ranks are among
            these pairs.

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
        there_are = masks.any(dim=2)  # positives, negatives: (2, batch)
        nearest, farthest = _extremes(batch, masks, there_are)
        lowest = torch.where(there_are.all(dim=0), nearest.amin(dim=0), nearest.amax(dim=0))  # one kind may be absent
        spread = farthest.amax(dim=0) - lowest
        # Not only > 0: a quotient by a spread that underflows would have an infinite gradient.
        ranked = spread > torch.finfo(spread.dtype).tiny
        if gradient_everywhere:
            begin, end, term, ranked = nearest[0], farthest[1], _straightened_term, ranked & there_are.all(dim=0)
        else:
            begin, end, term = lowest, farthest.amax(dim=0), _term
        # s⁺ = 1 − w(r⁺) = w(1 − r⁺), because the curve is point-symmetric: both terms are −log w(some gap).
        gaps = torch.stack([end - farthest[0], nearest[1] - begin]) / torch.where(ranked, spread, 1.0)  # 1 − r⁺ and r⁻
        terms = torch.where(ranked & there_are, term(gaps, alpha, eps), 0.0)
        return terms.sum(dim=0).mean().to(batch.embeddings.dtype)


@register_loss("rank")
class RankApproximationLoss(Loss):
    """NRA loss (Schall et al. 2019): ranks instead of distances, the two hardest pairs of every anchor.

    Needs several items per class in a batch (n-group sampling, for example 16 classes × 8).

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


def _extremes(batch: Comparison, masks: Tensor, there_are: Tensor) -> tuple[Tensor, Tensor]:
    """Per anchor the distances to the nearest and the farthest of each mask, (2, batch) each; 0 where there are none.

    In float64, because ranks are differences of distances and 1/ε magnifies their rounding.
    """
    references = None if batch.references is None else batch.references.detach()
    distances = pairwise_distances(batch.embeddings.detach(), references)
    others = torch.stack([distances.where(masks, math.inf).argmin(dim=2), distances.where(masks, -1.0).argmax(dim=2)])
    apart = widened(batch.embeddings) - widened(batch.others)[others]
    found = torch.linalg.vector_norm(apart, dim=3).where(there_are, 0.0)
    return found[0], found[1]


def _term(rank: Tensor, alpha: float, eps: float) -> Tensor:
    """−log(w(r) + ε), Eq. 13; at rank 0 without gradient.

    Both distances are the same pair there, and autograd would subtract two huge equal numbers (up to 1/ε each).
    """
    return -torch.log(_transfer(torch.where(rank > 0, rank, 0.0), alpha) + eps)


def _straightened_term(rank: Tensor, alpha: float, eps: float) -> Tensor:
    """The same from rank ¼ upwards, and its tangent at ¼ below."""
    height = 0.5 * (2 * STRAIGHT_BELOW) ** alpha + eps
    slope = alpha * (2 * STRAIGHT_BELOW) ** (alpha - 1) / height
    tangent = slope * (STRAIGHT_BELOW - rank) - math.log(height)
    return torch.where(rank < STRAIGHT_BELOW, tangent, _term(rank.clamp(min=STRAIGHT_BELOW), alpha, eps))


def _transfer(rank: Tensor, alpha: float) -> Tensor:
    """w(r; α), Eq. 10, for ranks of shape (batch,)."""
    return torch.where(rank < 0.5, _half_curve(rank, alpha), 1 - _half_curve(1 - rank, alpha))


def _half_curve(rank: Tensor, alpha: float) -> Tensor:
    """½ (2r)^α for r ≤ ½. The clamp bounds the slope near 0, which is infinite for α < 1; 0 itself stays 0."""
    return torch.where(rank > 0, 0.5 * (2 * rank.clamp(1e-12, 0.5)) ** alpha, 0.0)
