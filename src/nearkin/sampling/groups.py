"""Batches of k classes × n items (rank approximation paper, III), and pairs as the special case n = 2."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import cached_property

import numpy as np

from nearkin.errors import UserError
from nearkin.sampling.base import Indices, LabelBatchSampler, Labels, Members, class_numbers


class GroupSampler(LabelBatchSampler):
    """Batches of k classes × n items. If a class has fewer than n items, more classes fill the batch.

    Classes come in random order; every class comes once before any class comes again. Each time, the n items of a class
    are drawn at random.

    >>> labels = np.array(["cat", "cat", "cat", "dog", "dog", "dog"])
    >>> [sorted(labels[batch].tolist()) for batch in GroupSampler(labels, batch_size=4, per_class=2)]
    [['cat', 'cat', 'dog', 'dog']]
    """

    def __init__(self, labels: Labels, batch_size: int, per_class: int = 8, seed: int = 0) -> None:
        if per_class < 1:
            raise UserError(f"per_class must be an integer >= 1, got {per_class}")
        if per_class > batch_size > 1:
            larger = ", or larger batches" if batch_size < len(class_numbers(labels)) else ""
            raise UserError(
                f"a batch of {batch_size} items has no room for {per_class} items of a class; "
                f"use per_class={batch_size} or less{larger}"
            )
        self.per_class = per_class
        super().__init__(labels, batch_size, seed)

    larger_batch_hint = ", or a larger per_class"
    fewest = 1  # classes with fewer items are not drawn from

    def largest_batch(self) -> int:
        return int(np.minimum(self.members.sizes[self.groups], self.per_class).sum())

    @cached_property
    def members(self) -> Members:
        return Members(self.labels)

    @cached_property
    def groups(self) -> Indices:
        """The classes that are drawn from."""
        return np.flatnonzero(self.members.sizes >= self.fewest)

    def batches(self, rng: np.random.Generator) -> Iterator[Indices]:
        queue: deque[int] = deque()
        while True:
            chosen: dict[int, Indices] = {}
            missing = self.batch_size
            while missing:
                # Append the next round when all queued classes are in the batch. They wait for the next batch, so that
                # no class comes twice in one.
                if all(group in chosen for group in queue):
                    queue.extend(rng.permutation(self.groups).tolist())
                skipped = []
                while (group := queue.popleft()) in chosen:
                    skipped.append(group)
                queue.extendleft(reversed(skipped))
                chosen[group] = self.draw(group, missing, rng)
                missing -= len(chosen[group])
            yield np.concatenate(list(chosen.values()))

    def draw(self, group: int, most: int, rng: np.random.Generator) -> Indices:
        """Random items of a class: n, or fewer if it has fewer or ``most`` is less."""
        items = self.members[group]
        return rng.choice(items, min(self.per_class, len(items), most), replace=False)


def enough_per_class(labels: Labels, batch_size: int, per_class: int) -> int:
    """The smallest number >= ``per_class`` with which the classes fill a batch, or the size of the largest class.

    >>> enough_per_class([0] * 9 + [1] * 3, batch_size=8, per_class=2)
    5
    """
    sizes = np.bincount(class_numbers(labels))
    while np.minimum(sizes, per_class).sum() < batch_size and per_class < sizes.max():
        per_class += 1
    return per_class


class PairSampler(GroupSampler):
    """Batches of N pairs from N different classes (Sohn 2016); the two items of a pair are adjacent.

    >>> sampler = PairSampler([0, 0, 1, 1, 2], batch_size=4)
    >>> [sampler.labels[batch].tolist() for batch in sampler] in ([[0, 0, 1, 1]], [[1, 1, 0, 0]])
    True
    """

    larger_batch_hint = ""
    fewest = 2

    def __init__(self, labels: Labels, batch_size: int, seed: int = 0) -> None:
        if batch_size % 2:
            raise UserError(f"batch_size must be even to draw pairs, got {batch_size}")
        super().__init__(labels, batch_size, per_class=2, seed=seed)
