"""The base class of batch samplers. Seed, epoch and the sampler's state determine the batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import count, islice
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.utils.data import Sampler

from nearkin.errors import UserError

Indices = npt.NDArray[np.int64]
Labels = npt.ArrayLike | Sequence[str] | Tensor  # (items,) numbers or strings


class LabelBatchSampler(Sampler[list[int]], ABC):
    """Base class of batch samplers: ``DataLoader(dataset, batch_sampler=sampler)``. Each pass yields one epoch.

    ``epoch`` and ``position`` point to the next batch. Set them to continue in the middle of an epoch: seed and epoch
    alone determine its batches. If a method updates its sampler during training (a partition, a cluster index, losses),
    the update is part of ``state_dict``.

    Args:
        labels: (items,) the class of each item, as numbers or strings; stored in ``labels`` as 0, 1, … in sorted order.
        batch_size: number of items in a batch.
        seed: random seed.
    """

    def __init__(self, labels: Labels, batch_size: int, seed: int = 0) -> None:
        self.labels = class_numbers(labels)
        if batch_size < 2:
            raise UserError(f"batch_size must be an integer >= 2, got {batch_size}")
        if batch_size > (largest := self.largest_batch()):
            fix = f"use batch_size={largest} or less{self.larger_batch_hint}" if largest > 1 else "add items"
            raise UserError(f"{len(self.labels)} training items cannot fill a batch of {batch_size}; {fix}")
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0
        self.position = 0

    larger_batch_hint = ""  # ends the error message: another fix besides a smaller batch

    def largest_batch(self) -> int:
        """The largest batch that the items can fill."""
        return len(self.labels)

    @abstractmethod
    def batches(self, rng: np.random.Generator) -> Iterator[Indices]:
        """Yields endless batches of exactly ``batch_size`` items, drawn with ``rng``."""

    def batches_from(self, position: int, rng: np.random.Generator) -> Iterator[Indices]:
        """The same batches without the first ``position`` of them."""
        return islice(self.batches(rng), position, None)

    def independent_draws(self, position: int, rng: np.random.Generator) -> Iterator[tuple[int, np.random.Generator]]:
        """Step and generator of each batch from ``position`` on, for batches that do not depend on earlier ones.

        Steps count from 0 over all epochs.
        """
        first, root = self.epoch * len(self), int(rng.integers(2**63))
        for number in count(position):
            yield first + number, np.random.default_rng((root, number))

    def set_epoch(self, epoch: int) -> None:
        """Moves to the first batch of an epoch."""
        self.epoch, self.position = epoch, 0

    def __len__(self) -> int:
        """Number of batches in an epoch: items // batch_size."""
        return len(self.labels) // self.batch_size

    def __iter__(self) -> Iterator[list[int]]:
        epoch = self.batches_from(self.position, np.random.default_rng((self.seed, self.epoch)))
        for batch in islice(epoch, len(self) - self.position):
            self.position += 1
            if self.position == len(self):  # before the yield, because a loop may stop after the last batch
                self.epoch, self.position = self.epoch + 1, 0
            yield batch.tolist()

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        epochs, self.position = divmod(state["position"], len(self))  # older states can point past the last batch
        self.epoch = state["epoch"] + epochs


def share_of(batch: Indices, rank: int, world_size: int) -> Indices:
    """The consecutive items of a global batch that one process embeds.

    >>> share_of(np.arange(6), rank=1, world_size=2).tolist()
    [3, 4, 5]
    """
    if len(batch) % world_size:
        raise UserError(
            f"a batch of {len(batch)} cannot be split evenly across {world_size} processes; "
            f"use a batch size that is a multiple of {world_size}"
        )
    size = len(batch) // world_size
    return batch[rank * size : (rank + 1) * size]


def class_numbers(labels: Labels) -> Indices:
    """(items,) the class of each item as a number 0, 1, … in the sorted order of the labels.

    >>> class_numbers(["dog", "cat", "dog"])
    array([1, 0, 1])
    """
    found = np.asarray(labels.detach().cpu() if isinstance(labels, Tensor) else labels)
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    if found.ndim != 1:
        raise UserError(f"labels must have shape (items,), got {found.shape}")
    if found.dtype.kind == "f" and np.isnan(found).any():
        raise UserError("some labels are NaN; remove these items, or give them a class")
    try:
        return np.unique(found, return_inverse=True)[1]
    except TypeError as error:  # labels of mixed types cannot be sorted
        raise UserError("labels must be all numbers or all strings; some are missing or have another type") from error


class Members:
    """The items of each group, for groups numbered 0, 1, …

    They are slices of one array: there can be hundreds of thousands of groups.

    Attributes:
        group_of: (items,) the group of each item.
        items: (items,) item numbers, sorted by group.
        sizes: (groups,) the number of items of each group.
        starts: (groups,) where the items of each group start in ``items``.

    >>> members = Members(np.array([1, 0, 1]))
    >>> len(members), members[1]
    (2, array([0, 2]))
    """

    def __init__(self, group_of: Indices, groups: int = 0) -> None:
        self.group_of = group_of
        self.items = np.argsort(group_of, kind="stable")
        self.sizes = np.bincount(group_of, minlength=groups)
        self.starts = np.cumsum(self.sizes) - self.sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, group: int) -> Indices:
        start = self.starts[group]
        return self.items[start : start + self.sizes[group]]
