"""The mean losses of clusters, kept up to date item by item, and draws by them (Magnet paper, 3.2)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nearkin.sampling.base import Indices, Members
from nearkin.sampling.sum_tree import Numbers, SumTree

SMOOTHING = 0.01  # this share of the mean loss is added to each cluster's loss, so that every cluster can be drawn


class ClusterLosses:
    """The mean loss of each cluster, over its items with a known loss.

    An update and a draw cost the same for any number of items and clusters.

    >>> losses = ClusterLosses(Members(np.array([0, 0, 1])), np.full(3, np.nan))
    >>> losses.update(np.array([0, 1]), np.array([1.0, 2.0]))
    >>> losses.means.total, losses.is_known
    (1.5, array([ True, False]))
    """

    def __init__(self, clusters: Members, losses: Numbers) -> None:
        self.clusters = clusters
        self.place = np.empty_like(clusters.items)  # (items,) where each stands among the items sorted by cluster
        self.place[clusters.items] = np.arange(len(clusters.items))
        known = np.isfinite(losses[clusters.items])
        self.sums = SumTree(np.where(known, losses[clusters.items], 0))
        self.counts = SumTree(known.astype(np.float64))
        blocks = np.array_split(np.arange(len(clusters)), len(clusters) // 4096 + 1)
        means, is_known = zip(*map(self._means, blocks), strict=True)
        self.means, self.is_known = SumTree(np.concatenate(means)), np.concatenate(is_known)

    def update(self, items: Indices, losses: Numbers) -> None:
        """Sets the losses of some items; one that is not finite counts as unknown."""
        places, known = self.place[items], np.isfinite(losses)
        self.sums.update(places, np.where(known, losses, 0))
        self.counts.update(places, known.astype(np.float64))
        clusters = np.unique(self.clusters.group_of[items])
        means, self.is_known[clusters] = self._means(clusters)
        self.means.update(clusters, means)

    def draw(self, rng: np.random.Generator) -> int:
        """Draws a cluster with probability ∝ its mean loss + ``SMOOTHING`` × the average of these means.

        A cluster without a known loss counts as average.
        """
        # Let a be the average, so that all C clusters together weigh (1 + SMOOTHING) C a. SMOOTHING C a of this is for
        # every cluster alike. Of the rest, C a, each cluster has a share of 1/C if its loss is unknown; the clusters
        # with a known loss divide their shares in proportion to their losses.
        cluster = int(rng.integers(len(self.clusters)))
        alike = rng.random() < SMOOTHING / (1 + SMOOTHING)
        if alike or not self.is_known[cluster] or not self.means.total:
            return cluster
        return self.means.find(rng.random() * self.means.total)

    def _means(self, clusters: Indices) -> tuple[Numbers, npt.NDArray[np.bool_]]:
        """The mean known losses of some clusters, 0 where there are none; and whether there are any."""
        starts = self.clusters.starts[clusters]
        ends = starts + self.clusters.sizes[clusters]
        sums, counts = (tree.between(starts, ends) for tree in (self.sums, self.counts))
        return sums / np.maximum(counts, 1), counts > 0
