"""What a batch sampler is: it yields lists of item numbers, a function of (seed, epoch, what it was last told)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from nearkin.errors import UserError

Indices = npt.NDArray[np.int64]


class BatchSampler(ABC):
    """Yields the batches of one epoch after another; works as a DataLoader's ``batch_sampler`` too.

    ``epoch`` and ``position`` say where the next batch comes from. Both may be set, and are all that is needed to
    continue in the middle of an epoch, because the batches of an epoch follow from seed and epoch; and, for samplers
    that a method tells something on the way, from that, which is then part of the state.
    """

    def __init__(self, labels: npt.ArrayLike, batch_size: int, seed: int = 0) -> None:
        self.labels = np.asarray(labels)
        if batch_size < 2:
            raise UserError(f"a batch needs at least 2 items to compare, not {batch_size}")
        if batch_size > self.largest_batch():
            raise UserError(
                f"a batch of {batch_size} is larger than what the {len(self.labels)} training items can fill; "
                f"use a batch size of at most {self.largest_batch()}{self.larger_batches_by}"
            )
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0
        self.position = 0

    larger_batches_by = ""  # what else than a smaller batch would help, for the message

    def largest_batch(self) -> int:
        """The most items a batch could hold."""
        return len(self.labels)

    @abstractmethod
    def batches(self, rng: np.random.Generator) -> Iterator[Indices]:
        """The batches of an epoch, as many as are asked for: exactly ``batch_size`` items each, drawn with ``rng``."""

    def batches_from(self, position: int, rng: np.random.Generator) -> Iterator[Indices]:
        """The same without the first ``position`` of them."""
        return islice(self.batches(rng), position, None)

    def __len__(self) -> int:
        """Batches in an epoch: as many as the items would fill."""
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
    """The consecutive part of a global batch that one process embeds.

    >>> share_of(np.arange(6), rank=1, world_size=2).tolist()
    [3, 4, 5]
    """
    if len(batch) % world_size:
        raise UserError(f"a batch of {len(batch)} cannot be shared evenly by {world_size} processes")
    size = len(batch) // world_size
    return batch[rank * size : (rank + 1) * size]


def items_by_class(labels: npt.NDArray[Any]) -> list[Indices]:
    """The item numbers of each class, classes in ascending order."""
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.diff(labels[order])) + 1
    return np.split(order, starts)
