"""The method ``divide-and-conquer`` (Sanakoyeu, Tschernezki, Büchler, Ommer 2019), which wraps any other method.

Every T epochs k-means divides the training items into K clusters by their whole embedding. Each cluster goes to the
learner that had most of its items before; learner k owns the k-th slice of the embedding (3.2). Each step draws a
cluster uniformly and trains only its learner, with the loss and the batches of the wrapped method (3.3, Algorithm 1).
At the end all slices are trained together on all data.

The paper leaves some choices open. Here a slice is normalised on its own while its learner trains, and the joined
embedding as a whole. Each learner has its own β or proxies, and the joint training new ones. The joint training takes
the last tenth of the epochs. A cluster that cannot fill a batch borrows the items nearest to its mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from nearkin.clustering import kmeans, renamed_like
from nearkin.errors import UserError, unknown_name
from nearkin.losses.batch import group_means
from nearkin.methods.base import Batch, Embed, Every, Groups, Method, known_methods, make_method, parse_method, register
from nearkin.methods.ranges import Between, OneOf
from nearkin.sampling import LabelBatchSampler, PartitionSampler
from nearkin.space import Space

PARTITIONS = ("k-means", "random", "labels")


@register
@dataclass
class DivideAndConquer(Method):
    """Trains slices of the embedding on clusters of the data, and all slices together at the end.

    Args:
        wraps: the wrapped method, with its settings after a colon: "margin:beta=1.2,per_class=4".
        learners: number of clusters and slices (K); must divide the embedding's dimensions.
        recluster_epochs: epochs between two clusterings (T).
        partition: "k-means" in the embedding space; or, fixed at the start as in Table 6, "random" or "labels" (whole
            classes, grouped by k-means of their means).
        split_embedding: give each learner its own slice; False draws batches from clusters but trains the whole
            embedding (Table 6).
        finetune: share of the epochs, at the end, that train all slices together.
    """

    name = "divide-and-conquer"
    paper = "Sanakoyeu et al. 2019, divide and conquer the embedding space"
    batches = "from one cluster at a time, drawn as the wrapped method draws them"
    minimises = "the wrapped method's loss, on the cluster's slice of the embedding"
    readout = "nearest neighbours of the joined slices"
    ranges: ClassVar = {
        "learners": OneOf((2, 4, 8)),
        "recluster_epochs": OneOf((1, 2, 4)),
        "finetune": Between(0.0, 0.5),
    }

    wraps: str = "margin"
    learners: int = 4
    recluster_epochs: int = 2
    partition: str = "k-means"
    split_embedding: bool = True
    finetune: float = 0.1

    def __post_init__(self) -> None:
        if self.learners < 1 or self.recluster_epochs < 1 or not 0 <= self.finetune <= 1:
            raise UserError("learners and recluster_epochs must be at least 1, and finetune between 0 and 1")
        if self.partition not in PARTITIONS:
            raise unknown_name("partition", self.partition, PARTITIONS)
        self.slices = self.learners if self.split_embedding else 1
        self.together = _wrapped(self.wraps)
        self.alone = [_wrapped(self.wraps) for _ in range(self.slices)] if self.slices > 1 else []
        self.normalize, self.usual_batch = self.together.normalize, self.together.usual_batch
        self.needs_pairs, self.batch_unit = self.together.needs_pairs, self.together.batch_unit
        self.refresh_every = Every(epochs=self.recluster_epochs)
        self.united = False
        self.first_united_epoch = 0
        self.cluster_of: Tensor | None = None  # (items,) the cluster of every item

    def check(self, labels: npt.ArrayLike, dim: int, batch_size: int, normalize: str) -> None:
        super().check(labels, dim, batch_size, normalize)
        if 1 < self.slices == dim and normalize == "always":
            raise UserError(f"each learner gets one dimension, which cannot be normalised; use dim={2 * dim} or more")
        divided = np.unique(labels) if self.partition == "labels" else np.asarray(labels)
        if self.learners > len(divided):
            what = "classes" if self.partition == "labels" else "items"
            raise UserError(
                f"{len(divided)} {what} cannot be divided among {self.learners} learners; use fewer learners"
            )
        for method, share in self._shares(dim):
            method.check(labels, share, batch_size, normalize)

    def prepare(self, classes: int, dim: int, epochs: int) -> None:
        for method, share in self._shares(dim):
            method.prepare(classes, share, epochs)
        self.loss = nn.ModuleList(method.loss for method in [*self.alone, self.together])
        self.first_united_epoch = epochs - round(self.finetune * epochs)

    def sampler(self, labels: npt.ArrayLike, batch_size: int, seed: int) -> LabelBatchSampler:
        self.drawing = PartitionSampler(labels, batch_size, self.together.sampler, seed, self.needs_pairs)
        return self.drawing

    def start_epoch(self, epoch: int) -> None:
        for method in [*self.alone, self.together]:
            method.start_epoch(epoch)
        self.united = epoch >= self.first_united_epoch
        divided_for_good = self.cluster_of is not None and self.partition != "k-means"
        self.refresh_every = None if self.united or divided_for_good else Every(epochs=self.recluster_epochs)
        if self.united:
            self.drawing.unite()

    def on_refresh(self, space: Space) -> None:
        groups = self._divided(space).cpu()
        self.cluster_of = groups if self.cluster_of is None else renamed_like(groups, self.cluster_of, self.learners)
        self.drawing.divide(self._filled(space.to("cpu"), self.cluster_of))

    def step(self, embed: Embed, batch: Batch) -> Tensor:
        if self.united or self.slices == 1:
            return self.together.step(embed, batch)
        learner = self.drawing.part_of(batch.step)
        return self.alone[learner].step(partial(embed, learner=learner), batch)

    def read_out(
        self,
        space: Space,
        trained_on: Space | None,
        recall_at: Sequence[int] = (1, 2, 4, 8),
        clustering: str | None = "kmeans",
    ) -> dict[str, float]:
        return self.together.read_out(space, trained_on, recall_at, clustering)

    def groups(self) -> Groups | None:
        return None if self.cluster_of is None else Groups("Partition", "learner", self.cluster_of.numpy())

    def state_dict(self) -> dict[str, Any]:
        parts = [torch.from_numpy(items) for items in self.drawing.parts]
        return super().state_dict() | {"groups": self.cluster_of, "parts": parts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.cluster_of = None if state["groups"] is None else state["groups"].cpu()
        self.drawing.divide([items.cpu().numpy() for items in state["parts"]])

    def _shares(self, dim: int) -> list[tuple[Method, int]]:
        """Every wrapped method with its number of dimensions."""
        return [*((method, dim // self.slices) for method in self.alone), (self.together, dim)]

    def _divided(self, space: Space) -> Tensor:
        """(items,) the cluster of every item, 0…K−1."""
        match self.partition:
            case "k-means":
                return kmeans(space.embeddings, self.learners, self.drawing.seed).assignment
            case "random":
                order = torch.randperm(len(space), generator=torch.Generator().manual_seed(self.drawing.seed))
                return order % self.learners
        _, own, sizes = space.labels.unique(return_inverse=True, return_counts=True)
        return kmeans(group_means(space.embeddings, own, sizes), self.learners, self.drawing.seed).assignment[own]

    def _filled(self, space: Space, groups: Tensor) -> Sequence[npt.NDArray[np.int64]]:
        """The items of each cluster; a cluster too small for a batch also gets the items nearest to its mean."""
        return [self._with_neighbours(space, groups == group) for group in range(self.learners)]

    def _with_neighbours(self, space: Space, own: Tensor) -> npt.NDArray[np.int64]:
        items = own.nonzero().squeeze(1).numpy()
        if self.drawing.can_fill_a_batch(items):
            return items
        mean = space.embeddings[own if own.any() else slice(None)].mean(0)
        far = (space.embeddings - mean).square().sum(1).masked_fill(own, -1.0)
        order = far.argsort(stable=True).numpy()
        number = max(self.drawing.batch_size, len(items))
        while number < len(order) and not self.drawing.can_fill_a_batch(order[:number]):
            number *= 2
        return order[:number]


def _wrapped(text: str) -> Method:
    method = parse_method(text)
    if method.refresh_every is not None:
        able = ", ".join(known.name for known in known_methods() if make_method(known.name).refresh_every is None)
        raise UserError(
            f"divide-and-conquer cannot wrap '{method.name}', which divides the space itself; wrap one of {able}"
        )
    return method
