"""The method ``facility-location``: deep metric learning via facility location (Song, Jegelka, Rathod, Murphy 2017).

Random batches in which the number of classes is held at a ratio C/m (0.25 for CUB and Cars, 0.75 for products), and a
margin weight γ that falls exponentially. The paper gives the rate, 0.94, but neither γ nor when: here it falls once an
epoch. Its future work, gradients averaged over random subsets of the batch in the spirit of the bag of little
bootstraps, is ``sub_batches``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy.typing as npt
import torch
from torch import Tensor

from nearkin.errors import UserError
from nearkin.losses import FacilityLocationLoss
from nearkin.methods.base import Batch, Embed, Method, register
from nearkin.sampling import BatchSampler, ClassRatioSampler


@register
@dataclass
class FacilityLocation(Method):
    """The labels' clustering of a batch against the best violating one.

    Args:
        gamma: γ in Eq. 6 at the start.
        gamma_decay: what γ is multiplied with after each epoch.
        class_ratio: classes in a batch over its items (C/m).
        exchange: how the local search scores exchanges: "objective", "algorithm-2" or "all".
        sub_batches: random subsets of the batch whose losses are averaged; 1: the batch itself.
        sub_batch_share: their size as a share of the batch.
    """

    name = "facility-location"
    paper = "Song et al. 2017, deep metric learning via facility location"
    batches = "random, with a chosen share of classes"
    minimises = "labels' clustering against the best violating one"
    readout = "k-means, nearest neighbours"

    gamma: float = 10.0
    gamma_decay: float = 0.94
    class_ratio: float = 0.25
    exchange: str = "objective"
    sub_batches: int = 1
    sub_batch_share: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.gamma_decay <= 1 or not 0 < self.sub_batch_share <= 1 or self.sub_batches < 1:
            raise UserError("facility-location needs gamma_decay and sub_batch_share in 0…1, and sub_batches from 1")
        self.loss = FacilityLocationLoss(self.gamma, exchange=self.exchange)  # type: ignore[arg-type]

    def sampler(self, labels: npt.ArrayLike, batch_size: int, seed: int) -> BatchSampler:
        return ClassRatioSampler(labels, batch_size, self.class_ratio, self.class_ratio, seed)

    def start_epoch(self, epoch: int) -> None:
        self.loss.gamma = self.gamma * self.gamma_decay**epoch  # type: ignore[assignment]

    def step(self, embed: Embed, batch: Batch) -> Tensor:
        if self.sub_batches == 1:
            return super().step(embed, batch)
        embeddings = embed(batch.inputs)
        size = max(2, round(self.sub_batch_share * len(embeddings)))
        subsets = [torch.randperm(len(embeddings))[:size].to(embeddings.device) for _ in range(self.sub_batches)]
        return torch.stack([self.loss(embeddings[rows], batch.labels[rows]) for rows in subsets]).mean()
