"""Other batches for any method: classes × items, or batches that look at the whole embedding space.

Magnet draws neighbourhoods (Rippel et al. 2016, 3.2), and divide and conquer draws from clusters (Sanakoyeu et al.
2019, 3.3). Here, any method whose own batches do not look at the space can be trained with either. Its loss, settings
and read-out stay the same. Deviations from the papers: a neighbourhood consists of whole classes, and its seed does not
depend on a loss, because most losses are only a scalar. Clusters are those of divide and conquer without slices and
without joint training (Table 6).
"""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from nearkin.clustering import nearest_in_other_groups
from nearkin.errors import UserError, unknown_name
from nearkin.losses.batch import group_means, numbered
from nearkin.methods.base import Every, Groups, Method
from nearkin.methods.divide_and_conquer import DivideAndConquer
from nearkin.sampling import ClassNeighbourhoodSampler, GroupSampler, LabelBatchSampler
from nearkin.space import Space

OWN = "own"


def with_batches(
    method: Method, batches: str, refresh_epochs: int = 2, hard_share: float = 0.5, clusters: int = 4
) -> Method:
    """The same method with other batches.

    Args:
        method: a method whose batches do not look at the space.
        batches: "own" (the method's), "groups", "neighbourhoods" or "clusters".
        refresh_epochs: epochs between two refreshes of neighbourhoods or clusters.
        hard_share: share of the classes in a neighbourhood, besides the seed, that are nearest to it.
        clusters: number of clusters.

    >>> from nearkin.methods import make_method
    >>> near = with_batches(make_method("rank", alpha=2.0), "neighbourhoods")
    >>> near.name, near.settings()["alpha"], str(near.refresh_every)
    ('rank', 2.0, 'every 2 epochs')
    """
    if batches not in (OWN, *KINDS):
        raise unknown_name("batches", batches, [OWN, *KINDS])
    for name, value, least in (("batch_refresh_epochs", refresh_epochs, 1), ("batch_clusters", clusters, 2)):
        if value < least:
            raise UserError(f"{name} must be an integer >= {least}, got {value}")
    if not 0 < hard_share <= 1:
        raise UserError(f"batch_hard_share must be > 0 and <= 1, got {hard_share}")
    if batches == OWN:
        return method
    if not takes_batches(method):
        raise UserError(f"method '{method.name}' chooses its batches by the space itself; leave out batches")
    changed = copy(method)
    # A subclass of the method's own class, so that everything but the batches is inherited.
    kind = type(method)
    changed.__class__ = type(kind.__name__, (KINDS[batches], kind), {"__module__": kind.__module__})
    if isinstance(changed, NeighbourhoodBatches):
        changed.start(refresh_epochs, hard_share)
    if isinstance(changed, ClusterBatches):
        changed.start(refresh_epochs, clusters, method)
    return changed


def takes_batches(method: Method) -> bool:
    """Whether a method can be trained with other batches: its own do not look at the space."""
    return method.refresh_every is None


class GroupBatches(Method):
    """Batches of k classes × n items."""

    batches = "k classes × n items"

    def sampler(self, labels: npt.ArrayLike, batch_size: int, seed: int) -> LabelBatchSampler:
        return GroupSampler(labels, batch_size, self.items_per_class(), seed)


class NeighbourhoodBatches(Method):
    """Batches of a seed class, its nearest classes by the means of their embeddings, and random ones; n items of each.

    Without random classes, a class that is far from all others would rarely be trained, and no loss would keep distant
    classes apart.
    """

    batches = "n items of a seed class, its nearest classes and random ones"
    representative_batches = False
    batch_sampler: ClassNeighbourhoodSampler

    def start(self, refresh_epochs: int, hard_share: float) -> None:
        self.refresh_every = Every(epochs=refresh_epochs)
        self.hard_share = hard_share

    def sampler(self, labels: npt.ArrayLike, batch_size: int, seed: int) -> LabelBatchSampler:
        self.batch_sampler = ClassNeighbourhoodSampler(labels, batch_size, self.items_per_class(), seed)
        return self.batch_sampler

    def on_refresh(self, space: Space) -> None:
        class_of, sizes = numbered(space.labels)
        means = group_means(space.embeddings, class_of, sizes)
        classes = torch.arange(len(means), device=means.device)
        hard = max(1, round(self.hard_share * (self.batch_sampler.classes_in_batch - 1)))
        impostors = nearest_in_other_groups(means, classes, hard)
        self.batch_sampler.refresh(impostors.cpu().numpy())


class ClusterBatches(Method):
    """The method's own batches, each from one cluster of the embedding space."""

    batches = "those of the method, from one cluster at a time"
    representative_batches = False
    division: DivideAndConquer

    def start(self, refresh_epochs: int, clusters: int, method: Method) -> None:
        self.refresh_every = Every(epochs=refresh_epochs)
        self.division = DivideAndConquer(learners=clusters, split_embedding=False, finetune=0.0)
        self.division.joint_method, self.division.needs_pairs = method, method.needs_pairs
        self.division.loss = nn.Identity()  # the loss is part of this method's state

    def check(self, labels: npt.ArrayLike, dim: int, batch_size: int, normalize: str) -> None:
        super().check(labels, dim, batch_size, normalize)
        items = len(np.asarray(labels))
        if self.division.learners > items:
            raise UserError(f"{items} items cannot be divided into {self.division.learners} clusters; use fewer")

    def sampler(self, labels: npt.ArrayLike, batch_size: int, seed: int) -> LabelBatchSampler:
        return self.division.sampler(labels, batch_size, seed)

    def on_refresh(self, space: Space) -> None:
        self.division.on_refresh(space)

    def record(self) -> dict[str, float]:
        return self.division.record()

    def groups(self) -> Groups | None:
        found = self.division.groups()
        return None if found is None else Groups("Clusters", "cluster", found.group_of)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"division": self.division.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.division.load_state_dict(state["division"])


KINDS = {"groups": GroupBatches, "neighbourhoods": NeighbourhoodBatches, "clusters": ClusterBatches}
