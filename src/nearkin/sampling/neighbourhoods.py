"""Neighbourhoods of clusters (Magnet paper, 3.2): a few items of a seed cluster and each of its nearest impostors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nearkin.errors import UserError
from nearkin.sampling.base import Indices, LabelBatchSampler, Labels
from nearkin.sampling.losses import CachedLosses

SMOOTHING = 0.01  # this share of the mean loss is added to each cluster's loss, so that every cluster can be drawn


@dataclass(frozen=True, eq=False)
class ClusterIndex:
    """The clusters of all classes at the last refresh.

    Attributes:
        cluster_of: (items,) the cluster of each item.
        centroids: (clusters, dim).
        class_of: (clusters,) the class of each cluster.
    """

    cluster_of: Indices
    centroids: npt.NDArray[np.floating[Any]]
    class_of: Indices


class NeighbourhoodSampler(LabelBatchSampler):
    """Batches of a seed cluster and its nearest clusters of other classes (impostors), ``per_cluster`` items of each.

    The probability that a cluster is the seed is proportional to the mean known loss of its items. A cluster that has
    not been drawn yet counts as average. Small clusters repeat items. If there are too few impostors, more items are
    drawn from each cluster.

    >>> sampler = NeighbourhoodSampler([0, 0, 1, 1, 2, 2], batch_size=4, per_cluster=2)
    >>> sampler.refresh(ClusterIndex(np.array([0, 0, 1, 1, 2, 2]), np.array([[0.0], [1.0], [9.0]]), np.arange(3)))
    >>> sampler.neighbourhood(0)
    array([0, 1])
    """

    def __init__(self, labels: Labels, batch_size: int, per_cluster: int = 4, seed: int = 0) -> None:
        super().__init__(labels, batch_size, seed)
        if per_cluster < 1 or batch_size % per_cluster or batch_size < 2 * per_cluster:
            raise UserError(
                f"a batch of {batch_size} cannot be filled with {per_cluster} items per cluster; "
                f"use a batch size that is a multiple of per_cluster={per_cluster} and at least twice as large"
            )
        self.clusters_in_batch = batch_size // per_cluster
        self.losses = CachedLosses(len(self.labels))
        classes = np.arange(self.labels.max() + 1)
        self.refresh(ClusterIndex(self.labels, np.zeros((len(classes), 1)), classes))  # one cluster per class at first

    def refresh(self, index: ClusterIndex) -> None:
        """Draws from these clusters from now on, by all losses recorded so far."""
        self.index = index
        self.losses.catch_up()
        order = np.argsort(index.cluster_of, kind="stable")
        sizes = np.bincount(index.cluster_of, minlength=len(index.class_of))
        self.members = np.split(order, np.cumsum(sizes)[:-1])

    def neighbourhood(self, seed: int) -> Indices:
        """The seed cluster, followed by its nearest impostors in order of distance."""
        centroids, class_of = self.index.centroids, self.index.class_of
        distances = np.square(centroids - centroids[seed]).sum(1)
        impostors = np.flatnonzero(class_of != class_of[seed])
        nearest = impostors[np.argsort(distances[impostors], kind="stable")]
        return np.concatenate([[seed], nearest[: self.clusters_in_batch - 1]])

    def seed_probabilities(self, step: int) -> npt.NDArray[np.float64]:
        """(clusters,) the probability that each cluster is the seed of the batch at this step."""
        losses = self.losses.known_at(step)
        known = ~np.isnan(losses)
        clusters, number = self.index.cluster_of[known], len(self.index.class_of)
        counts = np.bincount(clusters, minlength=number)
        means = np.bincount(clusters, losses[known], minlength=number) / np.maximum(counts, 1)
        average = means[counts > 0].mean() if known.any() else 1.0
        weights = np.where(counts > 0, means, average) + SMOOTHING * average
        total = weights.sum()
        return weights / total if total > 0 else np.full(number, 1 / number)

    def batches(self, rng: np.random.Generator) -> Iterator[Indices]:
        return self.batches_from(0, rng)

    def batches_from(self, position: int, rng: np.random.Generator) -> Iterator[Indices]:
        first, root = self.epoch * len(self), int(rng.integers(2**63))
        for number in count(position):
            batch_rng = np.random.default_rng((root, number))  # does not depend on earlier batches
            seed = batch_rng.choice(len(self.members), p=self.seed_probabilities(first + number))
            chosen = self.neighbourhood(seed)
            shares = np.diff(np.linspace(0, self.batch_size, len(chosen) + 1).round().astype(int))
            drawn = [
                np.resize(batch_rng.permutation(self.members[cluster]), share)
                for cluster, share in zip(chosen, shares, strict=True)
            ]
            yield np.concatenate(drawn)

    def state_dict(self) -> dict[str, Any]:
        index = {name: torch.from_numpy(column) for name, column in vars(self.index).items()}
        return super().state_dict() | {"index": index, "losses": self.losses.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.refresh(ClusterIndex(**{name: column.cpu().numpy() for name, column in state["index"].items()}))
        self.losses.load_state_dict(state["losses"])
