"""Batches from one part of the items at a time (divide-and-conquer paper, 3.3 and Algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from nearkin.errors import UserError
from nearkin.sampling.base import Indices, LabelBatchSampler, Labels

# Makes the sampler of a part from its labels, the batch size and the seed.
Inside = Callable[[Indices, int, int], LabelBatchSampler]


class PartitionSampler(LabelBatchSampler):
    """Draws each batch from one part, chosen uniformly; ``inside`` makes the sampler of a part.

    Until `divide` is called, all items are one part.

    >>> from nearkin.sampling.random import RandomBatchSampler
    >>> sampler = PartitionSampler([0, 1] * 6, batch_size=3, inside=RandomBatchSampler)
    >>> sampler.divide([np.arange(4), np.arange(4, 12)])
    >>> [(min(batch) >= 4) == sampler.part_of(step) for step, batch in enumerate(sampler)]
    [True, True, True, True]
    """

    def __init__(
        self, labels: Labels, batch_size: int, inside: Inside, seed: int = 0, needs_pairs: bool = True
    ) -> None:
        super().__init__(labels, batch_size, seed)
        self.inside = inside
        self.needed_pairs = _paired_share(self.labels) / 4 if needs_pairs else 0.0
        self.unite()

    def divide(self, parts: Sequence[Indices]) -> None:
        """Draws from these parts, arrays of item numbers, from now on."""
        self.parts = parts
        self.samplers = [self.inside(self.labels[items], self.batch_size, self.seed) for items in parts]

    def unite(self) -> None:
        """Draws from all items from now on."""
        self.divide([np.arange(len(self.labels))])

    def can_fill_a_batch(self, items: Indices) -> bool:
        """Whether these items alone make useful batches.

        They must be enough items of several classes. If pairs are needed, the share of items that have one must be at
        least a quarter of that share among all items.
        """
        try:
            self.inside(self.labels[items], self.batch_size, self.seed)
        except UserError:
            return False
        labels = self.labels[items]
        return len(np.unique(labels)) > 1 and _paired_share(labels) >= self.needed_pairs

    def part_of(self, step: int) -> int:
        """The part that a batch is drawn from; batches are counted from 0 over all epochs."""
        epoch, position = divmod(step, len(self))
        return int(self._order(epoch)[position])

    def batches(self, rng: np.random.Generator) -> Iterator[Indices]:
        streams = [sampler.batches(own) for sampler, own in zip(self.samplers, rng.spawn(len(self.parts)), strict=True)]
        for part in self._order(self.epoch):
            yield self.parts[part][next(streams[part])]

    def _order(self, epoch: int) -> Indices:
        return np.random.default_rng((self.seed, epoch, 1)).integers(len(self.parts), size=len(self))


def _paired_share(labels: Indices) -> float:
    """The share of items that have another item of their class."""
    sizes = np.unique(labels, return_counts=True)[1]
    return float(sizes[sizes > 1].sum() / len(labels))
