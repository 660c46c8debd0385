"""Batches with a given ratio C/m of classes to items (facility-location paper, 4)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nearkin.errors import UserError
from nearkin.sampling.base import Indices, LabelBatchSampler, Labels, items_by_class


class ClassRatioSampler(LabelBatchSampler):
    """Batches of m random items from C random classes, at least one of each, with ``lowest`` ≤ C/m ≤ ``highest``.

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
            raise UserError(f"lowest and highest must satisfy 0 < lowest <= highest <= 1, got {lowest} and {highest}")
        self.members = items_by_class(self.labels)
        self.fewest = max(1, round(lowest * batch_size))
        self.most = max(1, round(highest * batch_size))
        self.sizes = [len(items) for items in self.members]
        sizes = np.sort(self.sizes)[::-1]
        if self.most > len(sizes) or sizes[: self.fewest].sum() < batch_size:
            classes = self.most if self.fewest == self.most else f"{self.fewest} to {self.most}"
            raise UserError(
                f"a batch of {batch_size} items from {classes} classes cannot be drawn from {len(sizes)} classes of at "
                f"most {sizes[0]} items; use another batch size or class ratio"
            )

    def batches(self, rng: np.random.Generator) -> Iterator[Indices]:
        while True:
            count = int(rng.integers(self.fewest, self.most + 1))
            chosen = self._large_enough(rng.permutation(len(self.members)).tolist(), count)
            one_each = np.array([rng.choice(self.members[group]) for group in chosen])
            others = np.setdiff1d(np.concatenate([self.members[group] for group in chosen]), one_each)
            rest = rng.choice(others, self.batch_size - count, replace=False)
            yield np.concatenate([one_each, rest])

    def _large_enough(self, order: list[int], count: int) -> list[int]:
        """The first ``count`` classes of ``order``, the smallest replaced by later ones until they can fill a batch."""
        chosen, others = order[:count], order[count:]
        while sum(self.sizes[group] for group in chosen) < self.batch_size:
            smallest = min(chosen, key=self.sizes.__getitem__)
            # A larger class exists: the constructor has checked that the largest classes can fill a batch.
            larger = next(group for group in others if self.sizes[group] > self.sizes[smallest])
            chosen[chosen.index(smallest)] = larger
            others.remove(larger)
        return chosen
