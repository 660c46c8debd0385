"""Vectors and labels to one number; usable in anybody's training loop."""

from nearkin.losses.rank import RankApproximationLoss, rank_approximation_loss

__all__ = ["RankApproximationLoss", "rank_approximation_loss"]
