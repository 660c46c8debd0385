"""Batches with a given ratio of classes to items (facility-location paper, 4): C classes among m items."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nearkin.errors import UserError
from nearkin.sampling.base import Indices, LabelBatchSampler, Labels, items_by_class


class ClassRatioSampler(LabelBatchSampler):
    """Random items of C random classes, at least one of each, with C/m between ``lowest`` and ``highest``.

    >>> sampler = ClassRatioSampler([0, 0, 0, 1, 1, 1, 2, 2, 2], batch_size=6, lowest=0.3, highest=0.4)
    >>> [len(set(sampler.labels[batch])) for batch in sampler]
    [2]
    """

    def __init__(
        self,
        labels: Labels,
        batch_size: int,
        lowest: float = 0.25,
        highest: float = 0.25,
        seed: int = 0,
    ) -> None:
        super().__init__(labels, batch_size, seed)
        if not 0 < lowest <= highest <= 1:
            raise UserError(f"the class ratio must rise within 0…1, not from {lowest} to {highest}")
        self.members = items_by_class(self.labels)
        self.fewest = max(1, round(lowest * batch_size))
        self.most = max(1, round(highest * batch_size))
        self.sizes = [len(items) for items in self.members]
        sizes = np.sort(self.sizes)[::-1]
        if self.most > len(sizes) or sizes[: self.fewest].sum() < batch_size:
            raise UserError(
                f"a batch of {batch_size} with {self.fewest} to {self.most} classes cannot be drawn from "
                f"{len(sizes)} classes of at most {sizes[0]} items; change the batch size or the ratio"
            )

    def batches(self, rng: np.random.Generator) -> Iterator[Indices]:
        while True:
            count = int(rng.integers(self.fewest, self.most + 1))
            chosen = self._enough(rng.permutation(len(self.members)).tolist(), count)
            one_each = np.array([rng.choice(self.members[group]) for group in chosen])
            others = np.setdiff1d(np.concatenate([self.members[group] for group in chosen]), one_each)
            more = rng.choice(others, self.batch_size - count, replace=False)
            yield np.concatenate([one_each, more])

    def _enough(self, order: list[int], count: int) -> list[int]:
        """The first ``count`` classes of ``order``; classes that are too small are replaced by later, larger ones."""
        chosen, line = order[:count], order[count:]
        while sum(self.sizes[group] for group in chosen) < self.batch_size:
            smallest = min(chosen, key=self.sizes.__getitem__)
            # There is one: otherwise the largest classes are chosen, and the constructor saw that they suffice.
            larger = next(group for group in line if self.sizes[group] > self.sizes[smallest])
            chosen[chosen.index(smallest)] = larger
            line.remove(larger)
        return chosen
