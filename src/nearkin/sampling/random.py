"""Random batches: every item at most once per epoch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nearkin.sampling.base import Indices, LabelBatchSampler


class RandomBatchSampler(LabelBatchSampler):
    """Items in random order, cut into batches; an incomplete last batch is dropped.

    >>> sampler = RandomBatchSampler([0, 0, 1, 1], batch_size=2)
    >>> sorted(item for batch in sampler for item in batch)
    [0, 1, 2, 3]
    """

    def batches(self, rng: np.random.Generator) -> Iterator[Indices]:
        while True:
            order = rng.permutation(len(self.labels))
            for start in range(0, len(order) - self.batch_size + 1, self.batch_size):
                yield order[start : start + self.batch_size]
