"""The method ``magnet``: adaptive density discrimination (Rippel, Paluri, Dollár, Bourdev 2016).

Each class has several clusters, found by k-means++ at every refresh (3.2). A batch is a neighbourhood: a seed cluster,
drawn with probability proportional to its loss, and its nearest clusters of other classes. At test time, the nearest
clusters decide the class (3.3, Eq. 6). The paper does not normalise embeddings; with a pretrained backbone, nearkin
does by default.

The paper leaves some choices open. Table 1 has a "global scaling" of 2 to 14 that the text does not explain; here it is
a factor of squared distances in units of σ², and its default, like that of α, was found by tuning. A cluster that has
not been drawn yet counts as average, and every cluster keeps a small probability. A batch is drawn by losses that are
at least 33 steps old, because batches are read ahead. Small classes get fewer clusters, so that a cluster has at least
``per_cluster`` items on average. Each batch has a weight of 0.05 in the running average of σ².

Once the training items are separated, the paper's loss is 0 and learning stops. Three settings that are not in the
paper let it go on: impostors from the whole index (``candidates``), a soft hinge (``hinge``), and a growing α
(``active_share``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy.typing as npt
import torch
from torch import Tensor

from nearkin.clustering import GroupedKMeans, choose_clusters, kmeans_per_group, nearest_in_other_groups
from nearkin.data.loader import to_device
from nearkin.errors import UserError, unknown_name
from nearkin.evaluation import nearest_cluster_error
from nearkin.losses import MagnetLoss
from nearkin.losses.batch import group_means, numbered
from nearkin.methods.base import Batch, Embed, Every, Groups, Method, StepLoss, register
from nearkin.methods.ranges import Between, OneOf
from nearkin.sampling import ClusterIndex, LabelBatchSampler, NeighbourhoodSampler
from nearkin.space import Space

BATCH_WEIGHT = 0.05  # weight of a new batch in the running average of σ²
ALPHA_STEP = 0.05  # the change of α in a step whose items all have a loss, or none of them
CANDIDATES = ("batch", "index")


@register
@dataclass
class Magnet(Method):
    """Pulls examples to their cluster and pushes them away from clusters of other classes.

    Args:
        alpha: α in Eq. 5, the gap between clusters, in the units of scaled distances.
        per_cluster: examples of each cluster in a batch (D); a batch has batch_size / per_cluster clusters (M).
        clusters: maximum number of clusters per class (K); small classes get fewer.
        choose_clusters: choose each class's number of clusters, from 1 to ``clusters``, at each refresh.
        refresh_epochs: epochs between two refreshes of the cluster index.
        refresh_steps: steps between two refreshes; 0 counts epochs instead.
        variance: σ² as in "eq4", or squared once more as in "eq5", or "none" for 1.
        scaling: factor of squared distances in units of the variance; our reading of "global scaling" in Table 1.
        candidates: impostors of an item: the clusters of its "batch", or all clusters of the "index"; those that are
            not in the batch stay where they were at the last refresh.
        hinge: "hard" is max(0, x) as in the paper; "soft" is log(1 + eˣ), which never stops pushing.
        active_share: α grows during training so that this share of the items has a loss > 0; 0 keeps α as it is.
        nearest_clusters: number of nearest clusters that vote at test time (L in Eq. 6).
    """

    name = "magnet"
    paper = "Rippel et al. 2016, adaptive density discrimination"
    batches = "a few items of a seed cluster, drawn by loss, and of each of its nearest clusters of other classes"
    minimises = "distance to the item's cluster relative to clusters of other classes, in units of the variance"
    readout = "nearest neighbours; k-nearest-cluster on known classes"
    normalize = "never"
    representative_batches = False
    ranges: ClassVar = {
        "alpha": Between(-2.0, 10.0),
        "scaling": Between(1.0, 32.0, log=True),
        "clusters": OneOf((1, 2, 4)),
    }

    alpha: float = 8.0
    per_cluster: int = 4
    clusters: int = 2
    choose_clusters: bool = False
    refresh_epochs: int = 3
    refresh_steps: int = 0
    variance: str = "eq4"
    scaling: float = 15.0
    candidates: str = "batch"
    hinge: str = "hard"
    active_share: float = 0.0
    nearest_clusters: int = 128

    def __post_init__(self) -> None:
        for name, least in (("clusters", 1), ("refresh_epochs", 1), ("refresh_steps", 0), ("nearest_clusters", 1)):
            if getattr(self, name) < least:
                raise UserError(f"{name} must be an integer >= {least}, got {getattr(self, name)}")
        if self.per_cluster < 2:
            raise UserError(
                "method 'magnet' needs at least two items per cluster to measure the variance; use per_cluster=2"
            )
        if self.candidates not in CANDIDATES:
            raise unknown_name("candidates", self.candidates, CANDIDATES)
        if not 0 <= self.active_share < 1:
            raise UserError(f"active_share must be a number >= 0 and < 1, got {self.active_share}")
        self.loss: MagnetLoss = MagnetLoss(self.alpha, self.variance, "none", self.hinge, self.scaling)
        self._mean_variance: Tensor | None = None
        self._impostors: dict[str, Tensor] = {}  # with candidates="index": all centroids and their classes
        self.refresh_every = (
            Every(steps=self.refresh_steps) if self.refresh_steps else Every(epochs=self.refresh_epochs)
        )
        self.usual_batch, self.batch_unit = 12 * self.per_cluster, self.per_cluster

    def check(self, labels: npt.ArrayLike, dim: int, batch_size: int, normalize: str) -> None:
        super().check(labels, dim, batch_size, normalize)
        if normalize == "test":
            raise UserError(
                "method 'magnet' needs the same embeddings in training and at test time; "
                'use normalize="always" or normalize="never"'
            )

    def sampler(self, labels: npt.ArrayLike, batch_size: int, seed: int) -> LabelBatchSampler:
        self.batch_sampler = NeighbourhoodSampler(labels, batch_size, self.per_cluster, seed)
        return self.batch_sampler

    def on_refresh(self, space: Space) -> None:
        found = self._index(space)
        impostors = nearest_in_other_groups(found.centroids, found.group_of, self.batch_sampler.clusters_in_batch - 1)
        self.batch_sampler.refresh(ClusterIndex(found.assignment.cpu().numpy(), impostors.cpu().numpy()))
        if self.candidates == "index":
            self._impostors = {"centroids": found.centroids, "centroid_labels": found.group_of}

    def step(self, embed: Embed, batch: Batch) -> Tensor:
        items = batch.items.numpy()
        clusters = to_device(torch.from_numpy(self.batch_sampler.index.cluster_of[items]), batch.labels.device)
        embeddings = embed(batch.inputs)
        losses: Tensor = self.loss(embeddings, batch.labels, clusters=clusters, **self._impostors)
        self.batch_sampler.losses.record(batch.step, items, losses)
        if self.active_share:
            self._grow_alpha(losses.detach())
        self._update_variance(_variance(embeddings.detach().double(), clusters))
        return losses.mean()

    def step_losses(self, dim: int) -> Iterator[StepLoss]:
        if self.candidates == "batch":  # the number of centroids in the index may change
            yield StepLoss(self.loss, dim, ("clusters",))

    def read_out(
        self,
        space: Space,
        trained_on: Space | None,
        recall_at: Sequence[int] = (1, 2, 4, 8),
        clustering: str | None = "kmeans",
    ) -> dict[str, float]:
        scores = super().read_out(space, trained_on, recall_at, clustering)
        if trained_on is None:
            return scores
        found = self._index(trained_on)
        variance = self._mean_variance
        if variance is None:
            variance = _variance(trained_on.embeddings.double(), found.assignment)
        sigma = variance.item()
        spread = {"eq4": sigma, "eq5": sigma**2, "none": 1.0}[self.variance] / self.scaling
        error = nearest_cluster_error(space, found.centroids, found.group_of, spread, self.nearest_clusters)
        return scores | {"nearest_cluster_error": error}

    def groups(self) -> Groups:
        return Groups("Clusters of classes", "cluster", self.batch_sampler.index.cluster_of, within_classes=True)

    def _index(self, space: Space) -> GroupedKMeans:
        """Finds the clusters of each class."""
        _, sizes = space.labels.unique(return_counts=True)
        most = (sizes // self.per_cluster).clamp(1, self.clusters)
        if self.choose_clusters:
            most = torch.minimum(most, choose_clusters(space.embeddings, space.labels, int(most.max())))
        return kmeans_per_group(space.embeddings, space.labels, most)

    @property
    def buffers(self) -> Mapping[str, Tensor]:
        found = {} if self._mean_variance is None else {"variance": self._mean_variance}
        alpha = {"alpha": torch.as_tensor(self.loss.alpha, dtype=torch.float64)} if self.active_share else {}
        return found | alpha

    @buffers.setter
    def buffers(self, buffers: Mapping[str, Tensor]) -> None:
        found = buffers.get("variance")
        self._mean_variance = None if found is None else torch.as_tensor(found, dtype=torch.float64).mean()
        self.loss.alpha = buffers.get("alpha", self.alpha)

    def record(self) -> dict[str, float]:
        return {name: value.item() for name, value in self.buffers.items()}

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"impostors": self._impostors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._impostors = state.get("impostors", {})  # not in checkpoints of older versions

    def _grow_alpha(self, losses: Tensor) -> None:
        """Moves α up while fewer than ``active_share`` of the items have a loss > 0, and down to ``alpha`` at most."""
        before = torch.as_tensor(self.loss.alpha, dtype=torch.float64).to(losses.device, non_blocking=True)
        active = losses > (0.0 if self.hinge == "hard" else math.log(2))  # a soft hinge of 0
        missing = self.active_share - active.double().mean()
        self.loss.alpha = (before + ALPHA_STEP * missing).clamp(min=self.alpha)

    def _update_variance(self, variance: Tensor) -> None:
        """Updates the running average of σ² for Eq. 6 on the device, without waiting for it."""
        before = variance if self._mean_variance is None else self._mean_variance.to(variance, non_blocking=True)
        self._mean_variance = BATCH_WEIGHT * variance + (1 - BATCH_WEIGHT) * before


def _variance(points: Tensor, clusters: Tensor) -> Tensor:
    """σ² of Eq. 4: squared distances of points (N, D) to the means of their clusters, over N − 1; a scalar."""
    cluster_of, sizes = numbered(clusters)
    centred = points - group_means(points, cluster_of, sizes)[cluster_of]
    return centred.square().sum() / max(1, len(points) - 1)
