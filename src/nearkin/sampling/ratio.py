"""Batches with a given ratio C/m of classes to items (facility-location paper, 4)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nearkin.errors import UserError
from nearkin.sampling.base import Indices, LabelBatchSampler, Labels, Members, class_numbers


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
        self.members = Members(self.labels)
        self.fewest = max(1, round(lowest * batch_size))
        self.most = max(1, round(highest * batch_size))
        self.by_size = np.argsort(self.members.sizes, kind="stable")  # the classes, smallest first
        self.ascending = sizes = self.members.sizes[self.by_size]
        if self.most > len(sizes) or sizes[-self.fewest :].sum() < batch_size:
            classes = self.most if self.fewest == self.most else f"{self.fewest} to {self.most}"
            raise UserError(
                f"a batch of {batch_size} items from {classes} classes cannot be drawn from {len(sizes)} classes of at "
                f"most {sizes[-1]} items; use another batch size or class ratio"
            )

    def batches(self, rng: np.random.Generator) -> Iterator[Indices]:
        while True:
            count = int(rng.integers(self.fewest, self.most + 1))
            chosen = self._large_enough(rng.choice(len(self.members), count, replace=False), rng)
            sizes, starts = self.members.sizes[chosen], self.members.starts[chosen]
            first = rng.integers(sizes)  # one of each class
            others = np.cumsum(sizes - 1)
            drawn = rng.choice(others[-1], self.batch_size - count, replace=False)
            of_class = others.searchsorted(drawn, "right")
            places = drawn - (others - sizes + 1)[of_class]  # among the other items of its class
            places += places >= first[of_class]
            yield self.members.items[np.concatenate([starts + first, starts[of_class] + places])]

    def _large_enough(self, chosen: Indices, rng: np.random.Generator) -> Indices:
        """Replaces the smallest of these classes by random larger ones until they can fill a batch."""
        sizes = self.members.sizes
        while sizes[chosen].sum() < self.batch_size:
            smallest = sizes[chosen].argmin()
            larger = self.ascending.searchsorted(sizes[chosen[smallest]], "right")
            # A larger class exists: the constructor has checked that the largest classes can fill a batch.
            while (group := self.by_size[rng.integers(larger, len(sizes))]) in chosen:
                pass
            chosen[smallest] = group
        return chosen


def fitting_ratio(labels: Labels, batch_size: int, ratio: float) -> float:
    """The ratio of classes to items, or less if there are too few classes.

    >>> fitting_ratio([0, 0, 0, 1, 1, 1], batch_size=4, ratio=0.75)
    0.5
    """
    return min(ratio, len(np.unique(class_numbers(labels))) / batch_size)
