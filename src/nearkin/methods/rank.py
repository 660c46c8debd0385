"""The method ``rank``: nonlinear rank approximation (Schall, Barthel, Hezel, Jung 2019).

Batches of k classes × n items; embeddings are not normalised in training, but at test (IV-C of the paper).
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
    """Approximated ranks of each anchor's hardest pair.

    Args:
        alpha: steepness of the transfer function (α in Eq. 10).
        eps: bounds the loss of one pair by −log ε (Eq. 13).
        gradient_everywhere: whether an anchor's nearest point moves if it is a negative, and its farthest if it is a
            positive; in the paper's form neither does.
        per_class: items of one class in a batch (n of the n-group; 8 for CUB and Cars, 4 for products).
    """

    name = "rank"
    paper = "Schall et al. 2019, nonlinear rank approximation"
    minimises = "nonlinear approximated ranks of the hardest pair"
    normalize = "test"
    finetune_rate = 5e-4
    ranges: ClassVar = {"alpha": Between(1.0, 16.0, log=True), "per_class": OneOf((4, 8))}

    alpha: float = 4.0
    eps: float = 1e-4
    gradient_everywhere: bool = False
    per_class: int = 8

    def __post_init__(self) -> None:
        self.loss = RankApproximationLoss(self.alpha, self.eps, self.gradient_everywhere)
