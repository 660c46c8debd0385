"""The method ``divide-and-conquer`` (Sanakoyeu, Tschernezki, Büchler, Ommer 2019), which wraps any other method.

Every T epochs, k-means divides the training items into K clusters, based on the whole embedding. Each cluster goes to
the learner that had most of its items before; learner k owns the k-th slice of the embedding (3.2). Each step draws a
cluster uniformly and trains only its learner, with the loss and the batches of the wrapped method (3.3, Algorithm 1).
At the end, all slices are trained together on all data.

The paper leaves some choices open. Here, a slice is normalised on its own while its learner trains; in joint training,
the embedding is normalised as a whole. Each learner has its own β or proxies; joint training starts from theirs. Joint
training takes the last tenth of the epochs; the learning rate schedule starts again for it, lower than before, because
a cosine would otherwise be almost at 0. A cluster with too few classes for a batch gives more items of each; one
with too few items repeats them. Only if that is not enough, it borrows the fewest items that are, nearest to its mean.
"""

from __future__ import annotations

import json
import logging
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from nearkin.clustering import kmeans, match_clusters
from nearkin.errors import UserError, unknown_name
from nearkin.losses.batch import group_means
from nearkin.methods.base import (
    Batch,
    Embed,
    Every,
    Groups,
    Method,
    Phase,
    StepLoss,
    known_methods,
    make_method,
    parse_method,
    parse_settings,
    recordable_losses,
    register,
)
from nearkin.methods.ranges import Between, OneOf, Range
from nearkin.sampling import LabelBatchSampler, PartitionSampler
from nearkin.space import Space

log = logging.getLogger("nearkin")

PARTITIONS = ("k-means", "random", "labels")
CLUSTER_BY = ("embedding", "features")
MUCH_BORROWED = 0.1
WRAPPED = "wraps."  # starts the names of the wrapped method's settings in a search


@register
@dataclass
class DivideAndConquer(Method):
    """Trains each slice of the embedding on one cluster of the data, then all slices together.

    Args:
        wraps: the wrapped method, with its settings after a colon: "margin:beta=1.2,per_class=4".
        learners: number of clusters and slices (K); must divide the number of embedding dimensions.
        recluster_epochs: epochs between two clusterings (T).
        partition: "k-means" in the embedding space; or, fixed at the start as in Table 6, "random" or "labels" (whole
            classes, grouped by k-means on their mean embeddings).
        cluster_by: what k-means sees: the whole "embedding" (3.3), or the "features" of the backbone at unit length, as
            in the authors' code.
        split_embedding: give each learner its own slice; False draws batches from clusters but trains the whole
            embedding (Table 6).
        finetune: share of the epochs that train all slices together, at the end; at least the last of several epochs.
        finetune_rate_factor: learning rates of these epochs, relative to those before; the schedule starts again.
    """

    name = "divide-and-conquer"
    paper = "Sanakoyeu et al. 2019, divide and conquer the embedding space"
    batches = "those of the wrapped method, from one cluster at a time"
    minimises = "the wrapped method's loss, on the cluster's slice of the embedding"
    readout = "nearest neighbours of the concatenated slices"
    representative_batches = False
    ranges: ClassVar = {
        "learners": OneOf((2, 4, 8)),
        "recluster_epochs": OneOf((1, 3, 9)),
        "finetune": Between(0.0, 0.5),
        "finetune_rate_factor": Between(0.03, 1.0, log=True),
    }

    wraps: str = "margin"
    learners: int = 4
    recluster_epochs: int = 3
    partition: str = "k-means"
    cluster_by: str = "embedding"
    split_embedding: bool = True
    finetune: float = 0.1
    finetune_rate_factor: float = 0.1

    def __post_init__(self) -> None:
        for name in ("learners", "recluster_epochs"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be an integer >= 1, got {getattr(self, name)}")
        if not 0 <= self.finetune <= 1:
            raise UserError(f"finetune must be from 0 to 1, got {self.finetune}")
        if self.finetune_rate_factor <= 0:
            raise UserError(f"finetune_rate_factor must be a number > 0, got {self.finetune_rate_factor}")
        if self.partition not in PARTITIONS:
            raise unknown_name("partition", self.partition, PARTITIONS)
        if self.cluster_by not in CLUSTER_BY:
            raise unknown_name("cluster_by", self.cluster_by, CLUSTER_BY)
        self.slices = self.learners if self.split_embedding else 1
        self.joint_method = _wrapped(self.wraps)
        self.learner_methods = [_wrapped(self.wraps) for _ in range(self.slices)] if self.slices > 1 else []
        self.normalize, self.usual_batch = self.joint_method.normalize, self.joint_method.usual_batch
        self.needs_pairs, self.batch_unit = self.joint_method.needs_pairs, self.joint_method.batch_unit
        self.refresh_every = Every(epochs=self.recluster_epochs)
        self.refresh_on = "features" if self.cluster_by == "features" else "embeddings"
        self.joint = False
        self.first_joint_epoch = 0
        self.behind = False  # whether learners have taken steps since the losses were joined
        self.cluster_of: Tensor | None = None  # (items,) the cluster of each item

    def check(self, labels: npt.ArrayLike, dim: int, batch_size: int, normalize: str) -> None:
        super().check(labels, dim, batch_size, normalize)
        if 1 < self.slices == dim and normalize == "always":
            raise UserError(
                f"each learner gets only one dimension, which cannot be normalised; use dim={2 * dim} or more"
            )
        by_class = self.partition == "labels"
        count = len(np.unique(labels) if by_class else np.asarray(labels))
        if self.learners > count:
            units = "classes" if by_class else "items"
            raise UserError(f"{count} {units} cannot be divided among {self.learners} learners; use fewer learners")
        for method, method_dim in self._dimensions(dim):
            method.check(labels, method_dim, batch_size, normalize)

    def prepare(self, classes: int, dim: int, epochs: int) -> None:
        for method, method_dim in self._dimensions(dim):
            method.prepare(classes, method_dim, epochs)
        self.loss = nn.ModuleList(method.loss for method in [*self.learner_methods, self.joint_method])
        self.behind = True
        fewest = int(self.finetune > 0 and epochs > 1)
        self.first_joint_epoch = epochs - max(fewest, round(self.finetune * epochs))
        self.phases = (Phase(0),)
        if self.learners > 1 and 0 < self.first_joint_epoch < epochs:
            self.phases += (Phase(self.first_joint_epoch, self.finetune_rate_factor),)

    def sampler(self, labels: npt.ArrayLike, batch_size: int, seed: int) -> LabelBatchSampler:
        wrapped = self.joint_method
        self.batch_sampler = PartitionSampler(
            labels, batch_size, wrapped.sampler, seed, self.needs_pairs, wrapped.part_sampler
        )
        return self.batch_sampler

    def start_epoch(self, epoch: int) -> None:
        for method in [*self.learner_methods, self.joint_method]:
            method.start_epoch(epoch)
        self.joint = epoch >= self.first_joint_epoch
        is_final = self._divided and self.partition != "k-means"
        # A run that trains on after joint epochs starts by dividing the items again.
        every = Every(epochs=self.recluster_epochs if self._divided else 1)
        self.refresh_every = None if self.joint or is_final else every
        if self.joint:
            self.batch_sampler.unite()
            self._join()

    def on_refresh(self, space: Space) -> None:
        if self.cluster_by == "features":
            space = replace(space, embeddings=nn.functional.normalize(space.embeddings, dim=1))
        clusters = self._partition(space).cpu()
        if self.cluster_of is not None:
            clusters = match_clusters(clusters, self.cluster_of, self.learners)
        self.cluster_of = clusters
        self.batch_sampler.divide(self._parts(space.to("cpu"), clusters))
        if (share := self.record()["borrowed_share"]) > MUCH_BORROWED:
            log.info("%.0f %% of the learners' items are borrowed from other clusters; use fewer learners", 100 * share)

    def step(self, embed: Embed, batch: Batch) -> Tensor:
        if self.slices == 1 or not self._divided:  # also the rest of a joint epoch, if more epochs were added since
            return self.joint_method.step(embed, batch)
        self.behind = True
        learner = self.batch_sampler.part_of(batch.step)
        return self.learner_methods[learner].step(partial(embed, learner=learner), batch)

    def step_losses(self, dim: int) -> Iterator[StepLoss]:
        for method, method_dim in self._dimensions(dim):
            yield from recordable_losses(method, method_dim)

    def read_out(
        self,
        space: Space,
        trained_on: Space | None,
        recall_at: Sequence[int] = (1, 2, 4, 8),
        clustering: str | None = "kmeans",
    ) -> dict[str, float]:
        self._join()
        return self.joint_method.read_out(space, trained_on, recall_at, clustering)

    @property
    def buffers(self) -> Mapping[str, Tensor]:
        self._join()
        return self.joint_method.buffers

    @buffers.setter
    def buffers(self, buffers: Mapping[str, Tensor]) -> None:
        self.joint_method.buffers = buffers
        self.behind = False

    def record(self) -> dict[str, float]:
        """How many of a learner's items belong to other clusters, on average over the learners."""
        if self.cluster_of is None or not self._divided:
            return {"borrowed_share": 0.0}
        cluster_of = self.cluster_of.numpy()
        borrowed = [np.mean(cluster_of[items] != cluster) for cluster, items in enumerate(self.batch_sampler.parts)]
        return {"borrowed_share": round(float(np.mean(borrowed)), 4)}

    def searched(self) -> dict[str, tuple[Any, Range]]:
        """Also those of the wrapped method, as "wraps.margin", unless ``wraps`` gives them a value."""
        given = parse_settings(self.wraps)[1]
        wrapped = self.joint_method.searched().items()
        return super().searched() | {f"{WRAPPED}{name}": found for name, found in wrapped if name not in given}

    def found(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Writes values of "wraps.margin" into ``wraps``.

        >>> DivideAndConquer(wraps="margin:beta=0.8").found({"learners": 2, "wraps.margin": 0.3})
        {'learners': 2, 'wraps': 'margin:beta=0.8,margin=0.3'}
        """
        own = {name: value for name, value in values.items() if not name.startswith(WRAPPED)}
        of_wrapped = {name.removeprefix(WRAPPED): value for name, value in values.items() if name not in own}
        if not of_wrapped:
            return own
        wrapped, given = parse_settings(self.wraps)
        words = {
            name: value if isinstance(value, str) else json.dumps(value) for name, value in (given | of_wrapped).items()
        }
        return own | {"wraps": f"{wrapped}:{','.join(f'{name}={word}' for name, word in words.items())}"}

    def groups(self) -> Groups | None:
        return None if self.cluster_of is None else Groups("Partition", "learner", self.cluster_of.numpy())

    def state_dict(self) -> dict[str, Any]:
        parts = [torch.from_numpy(items) for items in self.batch_sampler.parts]
        return super().state_dict() | {"groups": self.cluster_of, "parts": parts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        # Older checkpoints have this entry; there the losses were joined when joint epochs began, not when saved.
        self.behind = "joined_at" in state and state["joined_at"] != self.first_joint_epoch
        self.cluster_of = None if state["groups"] is None else state["groups"].cpu()
        self.batch_sampler.divide([items.cpu().numpy() for items in state["parts"]])

    @property
    def _divided(self) -> bool:
        """Whether batches come from clusters; not before the first refresh, and not in joint epochs."""
        return self.cluster_of is not None and len(self.batch_sampler.parts) == self.learners

    def _join(self) -> None:
        """Gives the loss of the whole embedding what the learners have learnt since the last time."""
        if self.behind and self.learner_methods:
            join_parameters(self.joint_method.loss, [method.loss for method in self.learner_methods])
        self.behind = False

    def _dimensions(self, dim: int) -> list[tuple[Method, int]]:
        """Each wrapped method with its number of dimensions."""
        return [*((method, dim // self.slices) for method in self.learner_methods), (self.joint_method, dim)]

    def _partition(self, space: Space) -> Tensor:
        """(items,) the cluster of each item, 0…K−1."""
        match self.partition:
            case "k-means":
                return kmeans(space.embeddings, self.learners, self.batch_sampler.seed).assignment
            case "random":
                order = torch.randperm(len(space), generator=torch.Generator().manual_seed(self.batch_sampler.seed))
                return order % self.learners
        _, class_of, sizes = space.labels.unique(return_inverse=True, return_counts=True)
        means = group_means(space.embeddings, class_of, sizes)
        return kmeans(means, self.learners, self.batch_sampler.seed).assignment[class_of]

    def _parts(self, space: Space, clusters: Tensor) -> Sequence[npt.NDArray[np.int64]]:
        """The items of each cluster; one that cannot fill a batch also gets the fewest items nearest to its mean."""
        return [self._with_neighbours(space, clusters == cluster) for cluster in range(self.learners)]

    def _with_neighbours(self, space: Space, members: Tensor) -> npt.NDArray[np.int64]:
        items = members.nonzero().squeeze(1).numpy()
        fills = self.batch_sampler.can_fill_a_batch
        if fills(items):
            return items
        mean = space.embeddings[members if members.any() else slice(None)].mean(0)
        distances = (space.embeddings - mean).square().sum(1).masked_fill(members, -1.0)  # members come first
        order = distances.argsort(stable=True).numpy()
        counts = range(len(items) + 1, len(order))
        return order[: len(items) + 1 + bisect_left(counts, True, key=lambda count: fills(order[:count]))]


@torch.no_grad()
def join_parameters(joint: nn.Module, learners: Sequence[nn.Module]) -> None:
    """Sets the parameters of a loss of the whole embedding from those of the losses of its slices.

    A parameter of the same shape, such as β, becomes the mean of the learners'. One whose slices make up the whole,
    such as proxies (classes, dim), is concatenated and divided by √K. If the slices of an embedding of unit length are
    equally long, a dot product with it is then the mean of the learners' dot products. Others stay as they are.

    >>> joint, learners = nn.Linear(4, 3), [nn.Linear(2, 3), nn.Linear(2, 3)]
    >>> join_parameters(joint, learners)
    >>> slices = nn.functional.normalize(torch.randn(2, 5, 2), dim=2)
    >>> mean = torch.stack([learner(part) for learner, part in zip(learners, slices)]).mean(0)
    >>> torch.allclose(joint(nn.functional.normalize(torch.cat([*slices], dim=1))), mean, atol=1e-6)
    True
    """
    of_learners = [dict(learner.named_parameters()) for learner in learners]
    for name, parameter in joint.named_parameters():
        slices: list[Tensor] = [found[name] for found in of_learners]
        differing = [axis for axis, size in enumerate(parameter.shape) if size != slices[0].shape[axis]]
        if not differing:
            parameter.copy_(torch.stack(slices).mean(0))
        elif len(differing) == 1 and parameter.shape[differing[0]] == sum(part.shape[differing[0]] for part in slices):
            parameter.copy_(torch.cat(slices, differing[0]) / len(slices) ** 0.5)


def _wrapped(text: str) -> Method:
    method = parse_method(text)
    if method.refresh_every is not None:
        allowed = ", ".join(known.name for known in known_methods() if make_method(known.name).refresh_every is None)
        raise UserError(
            f"divide-and-conquer cannot wrap '{method.name}', which divides the space itself; wrap one of {allowed}"
        )
    return method
