"""Nonlinear rank approximation (NRA).

Schall, Barthel, Hezel, Jung: Deep Metric Learning using Similarities from Nonlinear Rank Approximations, 2019,
Eq. 5–13. The paper leaves three cases open; here an anchor without positives (or without negatives) drops that term,
an anchor with all others at one distance drops both, and the mean is still taken over all anchors.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from nearkin.losses.batch import checked, full_precision, positive_number, same_class_masks
from nearkin.losses.distances import pairwise_distances, widened


def rank_approximation_loss(embeddings: Tensor, labels: Tensor, alpha: float = 4.0, eps: float = 1e-4) -> Tensor:
    """Pulls in each anchor's farthest positive and pushes off its nearest negative, by approximated rank.

    Every distance of an anchor is mapped linearly to a rank in 0…1 (its nearest other point 0, its farthest 1), ranks
    to similarities by a sigmoid-like curve, and the two hardest similarities to a loss.

    For α > 1 the curve is flat at 0, so an anchor whose nearest point of all is a negative gets the full loss for it
    but no gradient from that term; other anchors of the batch still see the pair.

    Args:
        embeddings: (batch, dim), not normalised in the paper.
        labels: (batch,) integers.
        alpha: α in Eq. 10, the steepness of the curve.
        eps: ε in Eq. 13, bounds each term by −log ε.

    Returns:
        A scalar.

    >>> points = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> near = rank_approximation_loss(points, torch.tensor([0, 0, 1, 1]))
    >>> far = rank_approximation_loss(points, torch.tensor([0, 1, 0, 1]))
    >>> bool(near < far)
    True
    """
    positive_number(alpha=alpha, eps=eps)
    embeddings, labels = checked(embeddings, labels)
    with full_precision(embeddings):
        # Ranks are differences of distances, and 1/ε magnifies their rounding.
        distances = pairwise_distances(widened(embeddings))
        positive, negative = same_class_masks(labels)
        farthest = _extreme(distances, positive | negative, largest=True)
        nearest = _extreme(distances, positive | negative, largest=False)
        spread = farthest - nearest
        # Not only > 0: a quotient by a spread that underflows would have an infinite gradient.
        ranked = spread > torch.finfo(spread.dtype).tiny
        spread = torch.where(ranked, spread, 1.0)
        # s⁺ = 1 − w(r⁺) = w(1 − r⁺), because the curve is point-symmetric: both terms are −log w(some gap).
        gap_beyond_positives = _gap(farthest, _extreme(distances, positive, largest=True)) / spread  # 1 − r⁺
        gap_before_negatives = _gap(_extreme(distances, negative, largest=False), nearest) / spread  # r⁻
        pull = -torch.log(_transfer(gap_beyond_positives, alpha) + eps)
        push = -torch.log(_transfer(gap_before_negatives, alpha) + eps)
        pull = torch.where(ranked & positive.any(dim=1), pull, 0.0)
        push = torch.where(ranked & negative.any(dim=1), push, 0.0)
        return (pull + push).mean().to(embeddings.dtype)


class RankApproximationLoss(nn.Module):
    """NRA loss (Schall et al. 2019): ranks instead of distances, the two hardest pairs of every anchor.

    Needs several items per class in a batch (n-group sampling, for example 16 classes × 8).

    >>> loss = RankApproximationLoss()(torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))
    >>> loss.shape
    torch.Size([])
    """

    def __init__(self, alpha: float = 4.0, eps: float = 1e-4) -> None:
        super().__init__()
        positive_number(alpha=alpha, eps=eps)
        self.alpha = alpha
        self.eps = eps

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return rank_approximation_loss(embeddings, labels, self.alpha, self.eps)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}, eps={self.eps}"


def _extreme(distances: Tensor, among: Tensor, largest: bool) -> Tensor:
    """Per anchor the largest or smallest distance ``among`` some others, (batch,); 0 where there are none."""
    if largest:
        return distances.where(among, 0.0).amax(dim=1)
    smallest = distances.where(among, math.inf).amin(dim=1)
    return smallest.where(among.any(dim=1), 0.0)


def _gap(larger: Tensor, smaller: Tensor) -> Tensor:
    """A difference that is never negative; where both are the same pair it is exactly 0, and so is its gradient.

    Left to itself, autograd would subtract two huge equal numbers there (up to 1/ε each).
    """
    return torch.where(larger > smaller, larger - smaller, 0.0)


def _transfer(rank: Tensor, alpha: float) -> Tensor:
    """w(r; α), Eq. 10, for ranks of shape (batch,)."""
    return torch.where(rank < 0.5, _half_curve(rank, alpha), 1 - _half_curve(1 - rank, alpha))


def _half_curve(rank: Tensor, alpha: float) -> Tensor:
    """½ (2r)^α for r ≤ ½. The clamp bounds the slope near 0, which is infinite for α < 1; 0 itself stays 0."""
    return torch.where(rank > 0, 0.5 * (2 * rank.clamp(1e-12, 0.5)) ** alpha, 0.0)
