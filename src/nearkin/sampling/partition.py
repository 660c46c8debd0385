"""Batches from one part of the items at a time (divide-and-conquer paper, 3.3 and Algorithm 1).

A part with too few items for a batch repeats some of them, as in the authors' code. Two copies in a batch are a
positive pair; without augmentation its distance is 0, so it teaches nothing. Their negatives count twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from nearkin.errors import UserError
from nearkin.sampling.base import Indices, LabelBatchSampler, Labels

# Makes a sampler from the labels of its items, the batch size and the seed.
MakeSampler = Callable[[Indices, int, int], LabelBatchSampler]
MOST_COPIES = 4  # of an item in a batch


class PartitionSampler(LabelBatchSampler):
    """Draws each batch from one part, chosen uniformly.

    Until `divide` is called, all items are one part. ``make_sampler`` makes the sampler of all items and
    ``make_part_sampler`` that of a part, which may have few classes; None: they are the same.

    >>> from nearkin.sampling.random import RandomBatchSampler
    >>> sampler = PartitionSampler([0, 1] * 6, batch_size=3, make_sampler=RandomBatchSampler)
    >>> sampler.divide([np.arange(4), np.arange(4, 12)])
    >>> [(min(batch) >= 4) == sampler.part_of(step) for step, batch in enumerate(sampler)]
    [True, True, True, True]
    """

    def __init__(
        self,
        labels: Labels,
        batch_size: int,
        make_sampler: MakeSampler,
        seed: int = 0,
        needs_pairs: bool = True,
        make_part_sampler: MakeSampler | None = None,
    ) -> None:
        super().__init__(labels, batch_size, seed)
        self.make_sampler, self.make_part_sampler = make_sampler, make_part_sampler or make_sampler
        self.min_paired_share = _paired_share(self.labels) / 4 if needs_pairs else 0.0
        self.unite()

    def divide(self, parts: Sequence[Indices]) -> None:
        """Draws from these parts (arrays of item numbers) from now on."""
        self.parts = parts
        self.pools = [self._pool(items) for items in parts]
        self.samplers = [self._sampler(self.make_part_sampler, pool) for pool in self.pools]
        self._orders: dict[int, Indices] = {}

    def unite(self) -> None:
        """Draws from all items from now on."""
        everything = np.arange(len(self.labels))
        self.parts = self.pools = [everything]
        self.samplers = [self._sampler(self.make_sampler, everything)]
        self._orders = {}

    def can_fill_a_batch(self, items: Indices) -> bool:
        """Whether useful batches can be drawn from these items alone.

        With at most ``MOST_COPIES`` of each, they must fill a batch, and they must have at least two classes. If the
        loss needs pairs, enough of them must share their class with another item: at least a quarter of that share
        among all items.
        """
        labels = self.labels[items]
        if self.batch_size > MOST_COPIES * len(items) or len(np.unique(labels)) < 2:
            return False
        try:
            self._sampler(self.make_part_sampler, self._pool(items))
        except UserError:
            return False
        return _paired_share(labels) >= self.min_paired_share

    def part_of(self, step: int) -> int:
        """The part that the batch of a step is drawn from; steps count from 0 over all epochs."""
        epoch, position = divmod(step, len(self))
        return int(self._order(epoch)[position])

    def batches(self, rng: np.random.Generator) -> Iterator[Indices]:
        rngs = rng.spawn(len(self.parts))
        streams = [sampler.batches(part_rng) for sampler, part_rng in zip(self.samplers, rngs, strict=True)]
        for part in self._order(self.epoch):
            yield self.pools[part][next(streams[part])]

    def _pool(self, items: Indices) -> Indices:
        """The items of a part, repeated if they are fewer than a batch has."""
        return np.tile(items, -(-self.batch_size // len(items)))

    def _sampler(self, make: MakeSampler, pool: Indices) -> LabelBatchSampler:
        return make(self.labels[pool], self.batch_size, self.seed)

    def _order(self, epoch: int) -> Indices:
        """(batches,) the part of each batch of an epoch; cached, because every step asks for one."""
        if epoch not in self._orders:
            order = np.random.default_rng((self.seed, epoch, 1)).integers(len(self.parts), size=len(self))
            self._orders = {epoch: order}
        return self._orders[epoch]


def _paired_share(labels: Indices) -> float:
    """The share of items that have another item of their class."""
    sizes = np.unique(labels, return_counts=True)[1]
    return float(sizes[sizes > 1].sum() / len(labels))
