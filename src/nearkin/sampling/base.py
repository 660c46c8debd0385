"""The base class of batch samplers. Batches follow from the seed, the epoch and the sampler's state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.utils.data import Sampler

from nearkin.errors import UserError

Indices = npt.NDArray[np.int64]
Labels = npt.ArrayLike | Sequence[str] | Tensor  # (items,) of numbers or texts


class LabelBatchSampler(Sampler[list[int]], ABC):
    """Base class of batch samplers: ``DataLoader(dataset, batch_sampler=sampler)``. Each pass yields one epoch.

    ``epoch`` and ``position`` point to the next batch. Set them to continue in the middle of an epoch: the batches of
    an epoch follow from seed and epoch alone. If a method updates its sampler during training (a partition, a cluster
    index, losses), the update is part of ``state_dict``.

    Args:
        labels: (items,) the class of every item, as numbers or strings; stored in ``labels`` as 0, 1, … in sorted
            order.
        batch_size: items in a batch.
        seed: random seed.
    """

    def __init__(self, labels: Labels, batch_size: int, seed: int = 0) -> None:
        self.labels = class_numbers(labels)
        if batch_size < 2:
            raise UserError(f"a batch needs at least 2 items to compare, not {batch_size}")
        if batch_size > self.largest_batch():
            raise UserError(
                f"a batch of {batch_size} is larger than what the {len(self.labels)} training items can fill; "
                f"use batch_size={self.largest_batch()} or less{self.larger_batches_by}"
            )
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0
        self.position = 0

    larger_batches_by = ""  # for the error: what would help besides a smaller batch

    def largest_batch(self) -> int:
        """The largest batch that the items can fill."""
        return len(self.labels)

    @abstractmethod
    def batches(self, rng: np.random.Generator) -> Iterator[Indices]:
        """Yields batches without end, exactly ``batch_size`` items each, drawn with ``rng``."""

    def batches_from(self, position: int, rng: np.random.Generator) -> Iterator[Indices]:
        """The same batches without the first ``position`` of them."""
        return islice(self.batches(rng), position, None)

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
            if self.position == len(self):  # now, because not every loop asks for one batch too many
                self.epoch, self.position = self.epoch + 1, 0
            yield batch.tolist()

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        whole, self.position = divmod(state["position"], len(self))  # older ones stood behind the last batch
        self.epoch = state["epoch"] + whole


def share_of(batch: Indices, rank: int, world_size: int) -> Indices:
    """The consecutive share of a global batch that one process embeds.

    >>> share_of(np.arange(6), rank=1, world_size=2).tolist()
    [3, 4, 5]
    """
    if len(batch) % world_size:
        raise UserError(f"a batch of {len(batch)} cannot be shared evenly by {world_size} processes")
    size = len(batch) // world_size
    return batch[rank * size : (rank + 1) * size]


def class_numbers(labels: Labels) -> Indices:
    """(items,) the class of every item as a number 0, 1, … in the sorted order of the labels.

    >>> class_numbers(["dog", "cat", "dog"])
    array([1, 0, 1])
    """
    found = np.asarray(labels.detach().cpu() if isinstance(labels, Tensor) else labels)
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    if found.ndim != 1:
        raise UserError(f"labels must be one number or text for each item, not of shape {found.shape}")
    if found.dtype.kind == "f" and np.isnan(found).any():
        raise UserError("some labels are NaN; leave these items out, or give them a class")
    try:
        return np.unique(found, return_inverse=True)[1]
    except TypeError as error:  # which cannot be put in order
        raise UserError("labels must be all numbers or all texts; some are of another type or missing") from error


def items_by_class(labels: Indices) -> list[Indices]:
    """The item numbers of each class, for classes numbered 0, 1, …

    >>> items_by_class(np.array([1, 0, 1]))
    [array([1]), array([0, 2])]
    """
    return np.split(np.argsort(labels, kind="stable"), np.cumsum(np.bincount(labels))[:-1])
