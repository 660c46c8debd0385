"""The method ``facility-location``: deep metric learning via facility location (Song, Jegelka, Rathod, Murphy 2017).

Uses random batches with a fixed ratio C/m of classes to items (0.25 for CUB and Cars, 0.75 for products), and a margin
weight γ that decays exponentially. The paper gives the factor, 0.94, but neither the first γ nor how often it decays.
The authors' public code is only the loss (TensorFlow's ``cluster_loss``), which takes γ as an argument. Here γ decays
every 50 steps, about once per epoch of CUB-200-2011. ``sub_batches`` is the paper's future work: it averages the
gradients of random subsets of the batch, a bag of little bootstraps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy.typing as npt
import torch
from torch import Tensor

from nearkin.errors import UserError
from nearkin.losses import FacilityLocationLoss
from nearkin.methods.base import Batch, Embed, Method, StepLoss, register
from nearkin.methods.ranges import Between, OneOf
from nearkin.sampling import ClassRatioSampler, LabelBatchSampler, fitting_ratio


@register
@dataclass
class FacilityLocation(Method):
    """Makes the clustering by labels better than any other clustering of a batch, by a margin.

    Args:
        gamma: γ in Eq. 6, the weight of the margin, in the first step.
        gamma_decay: factor applied to γ every ``gamma_decay_steps``.
        gamma_decay_steps: steps between two decays of γ; 0: one epoch.
        class_ratio: number of classes in a batch divided by the batch size (C/m).
        exchange: how the local search scores exchanges: "objective", "algorithm-2" or "all".
        sub_batches: number of random subsets of a batch whose losses are averaged; 1 uses the batch itself.
        sub_batch_share: size of a subset as a share of the batch.
    """

    name = "facility-location"
    paper = "Song et al. 2017, deep metric learning via facility location"
    batches = "random, with a fixed ratio of classes to items"
    minimises = "the lead of the best other clustering over the clustering by labels"
    readout = "k-means, nearest neighbours"
    finetune_rate = 1e-3
    ranges: ClassVar = {"gamma": Between(1.0, 100.0, log=True), "class_ratio": OneOf((0.125, 0.25, 0.5))}

    gamma: float = 10.0
    gamma_decay: float = 0.94
    gamma_decay_steps: int = 50
    class_ratio: float = 0.25
    exchange: str = "objective"
    sub_batches: int = 1
    sub_batch_share: float = 0.5

    def __post_init__(self) -> None:
        for name in ("gamma_decay", "class_ratio", "sub_batch_share"):
            if not 0 < getattr(self, name) <= 1:
                raise UserError(f"{name} must be > 0 and <= 1, got {getattr(self, name)}")
        if self.gamma_decay_steps < 0:
            raise UserError(f"gamma_decay_steps must be an integer >= 0, got {self.gamma_decay_steps}")
        if self.sub_batches < 1:
            raise UserError(f"sub_batches must be an integer >= 1, got {self.sub_batches}")
        self.loss = FacilityLocationLoss(self.gamma, exchange=self.exchange)  # type: ignore[arg-type]

    def check(self, labels: npt.ArrayLike, dim: int, batch_size: int, normalize: str) -> None:
        super().check(labels, dim, batch_size, normalize)
        classes = round(self.class_ratio * batch_size)
        if not 2 <= classes < batch_size:
            raise UserError(
                f"the loss of method 'facility-location' is always 0 unless a batch of {batch_size} has 2 to "
                f"{batch_size - 1} classes, and class_ratio={self.class_ratio} gives {classes}; "
                "use class_ratio=0.5 or larger batches"
            )
        if self.sub_batches > 1 and self.sub_batch_share * batch_size < 4:
            raise UserError(
                f"sub_batch_share={self.sub_batch_share} gives fewer than 4 of {batch_size} items; "
                "use sub_batch_share=0.5"
            )

    def items_per_class(self) -> int:
        return max(2, round(1 / self.class_ratio))

    def sampler(self, labels: npt.ArrayLike, batch_size: int, seed: int) -> LabelBatchSampler:
        return ClassRatioSampler(labels, batch_size, self.class_ratio, self.class_ratio, seed)

    def part_sampler(self, labels: npt.ArrayLike, batch_size: int, seed: int) -> LabelBatchSampler:
        ratio = fitting_ratio(labels, batch_size, self.class_ratio)
        return replace(self, class_ratio=ratio).sampler(labels, batch_size, seed)

    def start_epoch(self, epoch: int) -> None:
        if self.gamma_decay_steps == 0:
            self._decay(epoch)

    def step(self, embed: Embed, batch: Batch) -> Tensor:
        if self.gamma_decay_steps:
            self._decay(batch.step // self.gamma_decay_steps)
        if self.sub_batches == 1:
            return super().step(embed, batch)
        embeddings = embed(batch.inputs)
        size = max(2, round(self.sub_batch_share * len(embeddings)))
        subsets = [torch.randperm(len(embeddings))[:size].to(embeddings.device) for _ in range(self.sub_batches)]
        return torch.stack([self.loss(embeddings[rows], batch.labels[rows]) for rows in subsets]).mean()

    def step_losses(self, dim: int) -> Iterator[StepLoss]:
        if self.sub_batches == 1:
            yield StepLoss(self.loss, dim)

    def _decay(self, times: int) -> None:
        self.loss.gamma = self.gamma * self.gamma_decay**times  # type: ignore[assignment]
