"""Neighbourhoods of clusters (Magnet paper, 3.2): a few items of a seed cluster and each of its nearest impostors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nearkin.errors import UserError
from nearkin.sampling.base import Indices, LabelBatchSampler, Labels, Members
from nearkin.sampling.losses import CachedLosses


@dataclass(frozen=True, eq=False)
class ClusterIndex:
    """The clusters of all classes at the last refresh.

    Attributes:
        cluster_of: (items,) the cluster of each item.
        impostors: (clusters, n) the nearest clusters of other classes, nearest first; −1 where there are fewer
            (`nearkin.clustering.nearest_in_other_groups`). A batch of M clusters uses the first M − 1.
    """

    cluster_of: Indices
    impostors: Indices


class NeighbourhoodSampler(LabelBatchSampler):
    """Batches of a seed cluster and its nearest clusters of other classes (impostors), ``per_cluster`` items of each.

    The probability that a cluster is the seed is proportional to the mean known loss of its items. A cluster that has
    not been drawn yet counts as average. Small clusters repeat items. If there are too few impostors, more items are
    drawn from each cluster.

    >>> sampler = NeighbourhoodSampler([0, 0, 1, 1, 2, 2], batch_size=4, per_cluster=2)
    >>> sampler.refresh(ClusterIndex(np.array([0, 0, 1, 1, 2, 2]), impostors=np.array([[1], [0], [1]])))
    >>> sampler.neighbourhood(2)
    array([2, 1])
    """

    def __init__(self, labels: Labels, batch_size: int, per_cluster: int = 4, seed: int = 0) -> None:
        super().__init__(labels, batch_size, seed)
        if per_cluster < 1 or batch_size % per_cluster or batch_size < 2 * per_cluster:
            raise UserError(
                f"a batch of {batch_size} cannot be filled with {per_cluster} items per cluster; "
                f"use a batch size that is a multiple of per_cluster={per_cluster} and at least twice as large, "
                "or a smaller per_cluster"
            )
        self.clusters_in_batch = batch_size // per_cluster
        self.losses = CachedLosses(Members(self.labels))
        # One cluster per class at first; its impostors are the classes that follow.
        classes = np.arange(self.labels.max() + 1)[:, None]
        following = np.arange(1, min(self.clusters_in_batch, len(classes)))
        self.refresh(ClusterIndex(self.labels, (classes + following) % len(classes)))

    def refresh(self, index: ClusterIndex) -> None:
        """Draws from these clusters from now on, by all losses recorded so far."""
        self.index = index
        self.members = Members(index.cluster_of, len(index.impostors))
        self.losses.regroup(self.members)

    def neighbourhood(self, seed: int) -> Indices:
        """The seed cluster, followed by its nearest impostors in order of distance."""
        impostors = self.index.impostors[seed, : self.clusters_in_batch - 1]
        return np.concatenate([[seed], impostors[impostors >= 0]])

    def batches(self, rng: np.random.Generator) -> Iterator[Indices]:
        return self.batches_from(0, rng)

    def batches_from(self, position: int, rng: np.random.Generator) -> Iterator[Indices]:
        for step, batch_rng in self.independent_draws(position, rng):
            chosen = self.neighbourhood(self.losses.known_at(step).draw(batch_rng))
            shares = np.diff(np.linspace(0, self.batch_size, len(chosen) + 1).round().astype(int))
            drawn = [
                np.resize(batch_rng.choice(items, min(share, len(items)), replace=False), share)
                for items, share in zip(map(self.members.__getitem__, chosen), shares, strict=True)
            ]
            yield np.concatenate(drawn)

    def state_dict(self) -> dict[str, Any]:
        index = {name: torch.from_numpy(column) for name, column in vars(self.index).items()}
        return super().state_dict() | {"index": index, "losses": self.losses.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.refresh(ClusterIndex(**{name: column.cpu().numpy() for name, column in state["index"].items()}))
        self.losses.load_state_dict(state["losses"])
