"""The usual baselines, and any loss of pytorch-metric-learning: each is only a loss and a sampler.

``softmax`` also has a read-out of its own: on known classes, its classifier is what papers report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy.typing as npt
import torch
from torch import Tensor

from nearkin.errors import UserError
from nearkin.evaluation import classifier_error
from nearkin.fields import arguments_of
from nearkin.losses import (
    ContrastiveLoss,
    LiftedStructureLoss,
    MarginLoss,
    NCALoss,
    NPairsLoss,
    ProxyNCALoss,
    SoftmaxLoss,
    TripletSemiHardLoss,
    make_loss,
)
from nearkin.losses.pml import pml_losses
from nearkin.methods.base import GroupedMethod, Method, register
from nearkin.methods.ranges import Between, OneOf
from nearkin.sampling import LabelBatchSampler, PairSampler, RandomBatchSampler
from nearkin.space import Space


@register
@dataclass
class Triplet(GroupedMethod):
    """Triplet loss with semi-hard negatives.

    Args:
        margin: α, a squared distance between unit vectors.
        per_class: items of each class in a batch.
    """

    name = "triplet"
    paper = "Schroff et al. 2015, FaceNet"
    minimises = "distance to positives relative to semi-hard negatives"
    ranges: ClassVar = {"margin": Between(0.05, 1.0, log=True), "per_class": OneOf((2, 4, 8))}

    margin: float = 0.2
    per_class: int = 4

    def __post_init__(self) -> None:
        self.loss = TripletSemiHardLoss(self.margin)


@register
@dataclass
class Lifted(GroupedMethod):
    """Lifted structure loss: compares each positive pair with all negatives of both items.

    Args:
        margin: α, the distance that negative pairs should have.
        per_class: items of each class in a batch.
    """

    name = "lifted"
    paper = "Song et al. 2016, lifted structured feature embedding"
    finetune_rate = 1e-3
    minimises = "distance of each positive pair relative to all negatives of both items"
    normalize = "test"
    ranges: ClassVar = {"margin": Between(0.25, 4.0, log=True), "per_class": OneOf((2, 4, 8))}

    margin: float = 1.0
    per_class: int = 4

    def __post_init__(self) -> None:
        self.loss = LiftedStructureLoss(self.margin)


@register
@dataclass
class NPairs(Method):
    """N-pairs loss: compares each anchor's positive with the items of all other pairs.

    Args:
        regularization: λ, weight of the squared lengths of the embeddings.
    """

    name = "npairs"
    paper = "Sohn 2016, multi-class N-pair loss"
    batches = "pairs of different classes"
    finetune_rate = 1e-3
    minimises = "cross-entropy of a softmax over dot products with one positive"
    normalize = "test"
    ranges: ClassVar = {"regularization": Between(1e-4, 0.5, log=True)}

    regularization: float = 0.002

    def __post_init__(self) -> None:
        self.loss = NPairsLoss(self.regularization)

    def items_per_class(self) -> int:
        return 2

    def sampler(self, labels: npt.ArrayLike, batch_size: int, seed: int) -> LabelBatchSampler:
        return PairSampler(labels, batch_size, seed)


@register
@dataclass
class Contrastive(GroupedMethod):
    """Contrastive loss over all pairs of the batch.

    Args:
        margin: negative pairs farther apart than this have no loss.
        squared: use the paper's form, squared distances averaged over all pairs.
        per_class: items of each class in a batch.
    """

    name = "contrastive"
    paper = "Hadsell et al. 2006, learning an invariant mapping"
    frozen_rate = finetune_rate = 1e-4
    minimises = "distance of positive pairs, and how far negative pairs are inside a margin"
    ranges: ClassVar = {"margin": Between(0.3, 1.9), "per_class": OneOf((2, 4, 8))}

    margin: float = 1.0
    squared: bool = False
    per_class: int = 4

    def __post_init__(self) -> None:
        self.loss = ContrastiveLoss(self.margin, squared=self.squared)


@register
@dataclass
class Margin(GroupedMethod):
    """Margin loss with distance-weighted negatives.

    Args:
        margin: α, on both sides of the boundary.
        beta: initial value of the boundary β, which is learnt with ``loss_learning_rate``.
        nu: ν, weight of β in the loss.
        beta_per_class: learn one β for each class.
        cutoff: negatives closer than this are drawn as if they were at this distance.
        per_class: items of each class in a batch.
    """

    name = "margin"
    paper = "Wu et al. 2017, sampling matters"
    minimises = "how far pairs are on the wrong side of a learnt boundary"
    ranges: ClassVar = {
        "margin": Between(0.05, 0.5, log=True),
        "beta": Between(0.6, 1.4),
        "per_class": OneOf((2, 4, 8)),
    }

    margin: float = 0.2
    beta: float = 1.2
    nu: float = 0.0
    beta_per_class: bool = False
    cutoff: float = 0.5
    per_class: int = 4

    def __post_init__(self) -> None:
        self._build(None)

    def prepare(self, classes: int, dim: int, epochs: int) -> None:  # noqa: ARG002
        self._build(classes if self.beta_per_class else None)

    def _build(self, classes: int | None) -> None:
        self.loss = MarginLoss(self.margin, self.beta, self.nu, classes, self.cutoff)


@register
@dataclass
class NCA(GroupedMethod):
    """Neighbourhood components analysis within the batch.

    Args:
        scale: factor of the squared distances.
        per_class: items of each class in a batch.
    """

    name = "nca"
    paper = "Goldberger et al. 2004, neighbourhood components analysis"
    finetune_rate = 1e-4
    minimises = "the probability that a random neighbour has another class"
    normalize = "test"
    ranges: ClassVar = {"scale": Between(0.1, 10.0, log=True), "per_class": OneOf((2, 4, 8))}

    scale: float = 1.0
    per_class: int = 4

    def __post_init__(self) -> None:
        self.loss = NCALoss(self.scale)


@register
@dataclass
class ProxyNCA(Method):
    """Proxy-NCA: compares items with a learnt proxy for each class.

    Args:
        scale: factor of the squared distances between unit vectors.
        positive_in_denominator: False is the paper's form, whose denominator excludes the proxy of the item's class.
    """

    name = "proxy-nca"
    paper = "Movshovitz-Attias et al. 2017, no fuss metric learning"
    batches = "random"
    minimises = "distance to the proxy of the item's class relative to all others"
    needs_pairs = False
    finetune_rate = 1e-4
    ranges: ClassVar = {"scale": Between(1.0, 30.0, log=True)}

    scale: float = 3.0
    positive_in_denominator: bool = True

    def prepare(self, classes: int, dim: int, epochs: int) -> None:  # noqa: ARG002
        self.loss = ProxyNCALoss(classes, dim, self.scale, self.positive_in_denominator)

    def sampler(self, labels: npt.ArrayLike, batch_size: int, seed: int) -> LabelBatchSampler:
        return RandomBatchSampler(labels, batch_size, seed)


@register
@dataclass
class Softmax(Method):
    """Softmax classification of the training classes, by a linear layer on the embedding.

    The layer has no bias. The class of an embedding then does not depend on its length, so the classifier can also read
    embeddings that are scaled to unit length at test time.
    """

    name = "softmax"
    paper = "the classification baseline of the five papers"
    batches = "random"
    finetune_rate = 1e-3
    minimises = "cross-entropy of a linear classifier"
    readout = "nearest neighbours; its classifier on known classes"
    normalize = "test"
    needs_pairs = False

    def prepare(self, classes: int, dim: int, epochs: int) -> None:  # noqa: ARG002
        self.loss: SoftmaxLoss = SoftmaxLoss(classes, dim, bias=False)

    def sampler(self, labels: npt.ArrayLike, batch_size: int, seed: int) -> LabelBatchSampler:
        return RandomBatchSampler(labels, batch_size, seed)

    def read_out(
        self,
        space: Space,
        trained_on: Space | None,
        recall_at: Sequence[int] = (1, 2, 4, 8),
        clustering: str | None = "kmeans",
    ) -> dict[str, float]:
        scores = super().read_out(space, trained_on, recall_at, clustering)
        weight = self.buffers.get("classifier")
        if trained_on is None or weight is None:
            return scores
        classes = trained_on.labels.unique()  # ascending, as the loss numbers them
        if weight.shape != (len(classes), space.dim):  # trained on merged classes
            return scores
        return scores | {"classifier_error": classifier_error(space, weight.to(space.embeddings), classes)}

    @property
    def buffers(self) -> Mapping[str, Tensor]:
        return {"classifier": self.loss.classifier.weight.detach()} if hasattr(self, "loss") else {}

    @buffers.setter
    def buffers(self, buffers: Mapping[str, Tensor]) -> None:
        if (weight := buffers.get("classifier")) is None:
            return
        if weight.ndim != 2:
            raise UserError(f"the saved classifier must have shape (classes, dim), got {tuple(weight.shape)}")
        if not hasattr(self, "loss"):  # read from a run
            self.prepare(len(weight), weight.shape[1], epochs=0)
        with torch.no_grad():
            self.loss.classifier.weight.copy_(weight)


@register
@dataclass
class PML(GroupedMethod):
    """Any loss of pytorch-metric-learning that takes embeddings and labels, with its own defaults.

    Args:
        loss_name: class name in ``pytorch_metric_learning.losses``.
        per_class: items of each class in a batch.
    """

    name = "pml"
    in_all = False
    paper = "any loss of pytorch-metric-learning, by name"
    minimises = "the chosen loss"
    ranges: ClassVar = {"per_class": OneOf((2, 4, 8))}

    loss_name: str = "MultiSimilarityLoss"
    per_class: int = 4

    def prepare(self, classes: int, dim: int, epochs: int) -> None:  # noqa: ARG002
        kind = pml_losses().get(self.loss_name)
        needed = {name for name, required in arguments_of(kind).items() if required} if kind else set()
        # For losses that learn weights or proxies for the classes.
        sizes = {"num_classes": classes, "embedding_size": dim, "descriptors_dim": dim}
        self.loss = make_loss(f"pml:{self.loss_name}", **{name: sizes[name] for name in needed & sizes.keys()})
