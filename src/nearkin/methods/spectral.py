"""The method ``spectral``: deep spectral clustering learning, DSCL (Law, Urtasun, Zemel 2017).

The paper uses large random batches (1,260 images, processed 18 at a time: ``micro_batch``), few steps (100 for the
whole network, or 200 for the last layer: ``freeze_backbone``), and early stopping (``patience``). At test time, it
normalises the embeddings, or uses the left singular vectors of the whole test set ("with SC", Algorithm 2). Both are
measured here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy.typing as npt

from nearkin.clustering import spectral_embedding
from nearkin.errors import UserError
from nearkin.evaluation import evaluate
from nearkin.losses import SpectralClusteringLoss
from nearkin.methods.base import Method, register
from nearkin.methods.ranges import OneOf
from nearkin.sampling import ClassRatioSampler, LabelBatchSampler, RandomBatchSampler, fitting_ratio
from nearkin.space import Space

WITH_SC = "with_sc_"


@register
@dataclass
class Spectral(Method):
    """Deep spectral clustering: solves one relaxed clustering problem for the whole batch.

    Args:
        class_ratio: number of classes in a batch divided by the batch size; 0 draws items at random, as the paper does
            for large classes.
    """

    name = "spectral"
    paper = "Law et al. 2017, deep spectral clustering learning"
    batches = "random and large"
    minimises = "how far the embeddings are from separating the classes linearly, k − tr(C F F⁺)"
    readout = "nearest neighbours, plain and with SC (Algorithm 2)"
    readout_columns: ClassVar = {
        WITH_SC: ("with SC", "computed on the left singular vectors of all embeddings instead of the embeddings")
    }
    usual_batch = 1260
    normalize = "test"
    finetune_rate = 1e-3
    ranges: ClassVar = {"class_ratio": OneOf((0.0, 0.05, 0.125))}

    class_ratio: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.class_ratio <= 1:
            raise UserError(f"class_ratio must be from 0 to 1, got {self.class_ratio}")
        self.loss = SpectralClusteringLoss()

    def check(self, labels: npt.ArrayLike, dim: int, batch_size: int, normalize: str) -> None:
        super().check(labels, dim, batch_size, normalize)
        if batch_size <= dim:
            most = self.most_dimensions(batch_size)
            raise UserError(
                f"the loss of method 'spectral' is always 0 unless a batch ({batch_size} items) is larger than the "
                f"embedding ({dim} dimensions); use dim={most} or a larger batch_size"
            )

    def most_dimensions(self, batch_size: int) -> int:
        return max(1, batch_size // 4)

    def items_per_class(self) -> int:
        return max(2, round(1 / (self.class_ratio or 1 / 16)))  # many, because batches are large

    def sampler(self, labels: npt.ArrayLike, batch_size: int, seed: int) -> LabelBatchSampler:
        if self.class_ratio:
            return ClassRatioSampler(labels, batch_size, self.class_ratio, self.class_ratio, seed)
        return RandomBatchSampler(labels, batch_size, seed)

    def part_sampler(self, labels: npt.ArrayLike, batch_size: int, seed: int) -> LabelBatchSampler:
        ratio = fitting_ratio(labels, batch_size, self.class_ratio)
        return replace(self, class_ratio=ratio).sampler(labels, batch_size, seed)

    def read_out(
        self,
        space: Space,
        trained_on: Space | None,
        recall_at: Sequence[int] = (1, 2, 4, 8),
        clustering: str | None = "kmeans",
    ) -> dict[str, float]:
        singular = replace(space, embeddings=spectral_embedding(space.embeddings))
        scores = evaluate(singular, recall_at=recall_at, clustering=clustering).scores
        named = {WITH_SC + name: score for name, score in scores.items() if not name.startswith("queries")}
        return super().read_out(space, trained_on, recall_at, clustering) | named
