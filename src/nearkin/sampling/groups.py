"""Batches of k classes × n items (rank approximation paper, III), and pairs as the special case n = 2."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from nearkin.errors import UserError
from nearkin.sampling.base import Indices, LabelBatchSampler, Labels, items_by_class


class GroupSampler(LabelBatchSampler):
    """Batches of k classes × n items. If a class has fewer than n items, further classes fill the batch.

    Classes come in random order, each once before any comes again. The n items of a class are drawn anew each time.

    >>> labels = np.array(["cat", "cat", "cat", "dog", "dog", "dog"])
    >>> [sorted(labels[batch].tolist()) for batch in GroupSampler(labels, batch_size=4, per_class=2)]
    [['cat', 'cat', 'dog', 'dog']]
    """

    def __init__(self, labels: Labels, batch_size: int, per_class: int = 8, seed: int = 0) -> None:
        if not 1 <= per_class <= batch_size:
            raise UserError(f"per_class must be between 1 and the batch size {batch_size}, not {per_class}")
        self.per_class = per_class
        super().__init__(labels, batch_size, seed)

    larger_batches_by = ", or more items of each class (per_class)"

    def largest_batch(self) -> int:
        return sum(min(len(items), self.per_class) for items in self.members)

    @cached_property
    def members(self) -> list[Indices]:
        """The items of each class to draw from."""
        return items_by_class(self.labels)

    def batches(self, rng: np.random.Generator) -> Iterator[Indices]:
        waiting: list[int] = []
        while True:
            chosen: dict[int, Indices] = {}
            missing = self.batch_size
            while missing:
                # A fresh round of classes is appended before the old one is used up, so that a class that is
                # already in the batch can wait for the next one instead of coming twice.
                if all(group in chosen for group in waiting):
                    waiting += rng.permutation(len(self.members)).tolist()
                group = waiting.pop(next(i for i, group in enumerate(waiting) if group not in chosen))
                items = self.members[group]
                chosen[group] = rng.choice(items, min(self.per_class, len(items), missing), replace=False)
                missing -= len(chosen[group])
            yield np.concatenate(list(chosen.values()))


class PairSampler(GroupSampler):
    """Batches of N pairs from N different classes (Sohn 2016); the two items of a pair are adjacent.

    >>> sampler = PairSampler([0, 0, 1, 1, 2], batch_size=4)
    >>> [sampler.labels[batch].tolist() for batch in sampler] in ([[0, 0, 1, 1]], [[1, 1, 0, 0]])
    True
    """

    larger_batches_by = ""

    def __init__(self, labels: Labels, batch_size: int, seed: int = 0) -> None:
        if batch_size % 2:
            raise UserError(f"pairs need an even batch size, not {batch_size}")
        super().__init__(labels, batch_size, per_class=2, seed=seed)

    @cached_property
    def members(self) -> list[Indices]:
        return [items for items in items_by_class(self.labels) if len(items) >= 2]
