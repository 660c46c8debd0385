"""The method ``rank``: nonlinear rank approximation (Schall, Barthel, Hezel, Jung 2019).

Uses batches of k classes × n items. Embeddings are normalised at test time, but not in training (IV-C of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nearkin.losses import RankApproximationLoss
from nearkin.methods.base import GroupedMethod, register
from nearkin.methods.ranges import Between, OneOf


@register
@dataclass
class Rank(GroupedMethod):
    """Nonlinear rank approximation for the two hardest pairs of each anchor.

    Args:
        alpha: α in Eq. 10, the steepness of the transfer function.
        eps: ε in Eq. 13, bounds the loss of one pair by −log ε.
        gradient_everywhere: also give a gradient to anchors whose nearest item is a negative or whose farthest item is
            a positive; in the paper's form they have none.
        per_class: items of each class in a batch (in the paper 8 for CUB and Cars, 4 for products).
    """

    name = "rank"
    paper = "Schall et al. 2019, nonlinear rank approximation"
    minimises = "the rank error of each anchor's farthest positive and nearest negative"
    normalize = "test"
    finetune_rate = 5e-4
    ranges: ClassVar = {"alpha": Between(1.0, 16.0, log=True), "per_class": OneOf((4, 8))}

    alpha: float = 4.0
    eps: float = 1e-4
    gradient_everywhere: bool = False
    per_class: int = 8

    def __post_init__(self) -> None:
        self.loss = RankApproximationLoss(self.alpha, self.eps, self.gradient_everywhere)
