"""Batches from one part of the items at a time (divide-and-conquer paper, 3.3 and Algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from nearkin.errors import UserError
from nearkin.sampling.base import Indices, LabelBatchSampler, Labels

# Makes the sampler of a part from the part's labels, the batch size and the seed.
MakeSampler = Callable[[Indices, int, int], LabelBatchSampler]


class PartitionSampler(LabelBatchSampler):
    """Draws each batch from one part, chosen uniformly; ``make_sampler`` makes the sampler of a part.

    Until `divide` is called, all items are one part.

    >>> from nearkin.sampling.random import RandomBatchSampler
    >>> sampler = PartitionSampler([0, 1] * 6, batch_size=3, make_sampler=RandomBatchSampler)
    >>> sampler.divide([np.arange(4), np.arange(4, 12)])
    >>> [(min(batch) >= 4) == sampler.part_of(step) for step, batch in enumerate(sampler)]
    [True, True, True, True]
    """

    def __init__(
        self, labels: Labels, batch_size: int, make_sampler: MakeSampler, seed: int = 0, needs_pairs: bool = True
    ) -> None:
        super().__init__(labels, batch_size, seed)
        self.make_sampler = make_sampler
        self.min_paired_share = _paired_share(self.labels) / 4 if needs_pairs else 0.0
        self.unite()

    def divide(self, parts: Sequence[Indices]) -> None:
        """Draws from these parts (arrays of item numbers) from now on."""
        self.parts = parts
        self._orders: dict[int, Indices] = {}
        self.samplers = [self.make_sampler(self.labels[items], self.batch_size, self.seed) for items in parts]

    def unite(self) -> None:
        """Draws from all items from now on."""
        self.divide([np.arange(len(self.labels))])

    def can_fill_a_batch(self, items: Indices) -> bool:
        """Whether useful batches can be drawn from these items alone.

        They must fill a batch and have at least two classes. If the loss needs pairs, enough of them must share their
        class with another item: at least a quarter of that share among all items.
        """
        try:
            self.make_sampler(self.labels[items], self.batch_size, self.seed)
        except UserError:
            return False
        labels = self.labels[items]
        return len(np.unique(labels)) > 1 and _paired_share(labels) >= self.min_paired_share

    def part_of(self, step: int) -> int:
        """The part that the batch of a step is drawn from; steps count from 0 over all epochs."""
        epoch, position = divmod(step, len(self))
        return int(self._order(epoch)[position])

    def batches(self, rng: np.random.Generator) -> Iterator[Indices]:
        rngs = rng.spawn(len(self.parts))
        streams = [sampler.batches(part_rng) for sampler, part_rng in zip(self.samplers, rngs, strict=True)]
        for part in self._order(self.epoch):
            yield self.parts[part][next(streams[part])]

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
