"""A sum tree: numbers that can be changed, summed and drawn from without reading all of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nearkin.sampling.base import Indices

Numbers = npt.NDArray[np.float64]

WIDTH = 64  # numbers in a row: a million take four levels, and numpy reads a row almost as fast as one number


class SumTree:
    """Non-negative numbers and their sums. Each method reads a few rows of 64 numbers, however many there are.

    A sum depends only on the numbers that it adds, to the last bit, and not on the order of the updates.

    >>> tree = SumTree(np.array([3.0, 0.0, 1.0]))
    >>> tree.update(np.array([1]), np.array([6.0]))
    >>> tree.total, tree.between(np.array([0, 1]), np.array([2, 3])).tolist()
    (10.0, [9.0, 7.0])
    >>> [tree.find(target) for target in (0.0, 2.9, 3.0, 8.9, 9.0)]
    [0, 0, 1, 1, 2]
    """

    def __init__(self, numbers: Numbers) -> None:
        self.levels: list[Numbers] = []  # (rows, WIDTH) each; the numbers of the next level are the sums of these rows
        while not self.levels or len(numbers) > 1:
            level = np.zeros(
                (len(numbers) // WIDTH + 1, WIDTH)
            )  # there is a place after the last number, for `between`
            level.flat[: len(numbers)] = numbers
            self.levels.append(level)
            numbers = level.sum(1)

    @property
    def total(self) -> float:
        return float(self.levels[-1].sum())

    def update(self, places: Indices, numbers: Numbers) -> None:
        """Sets the numbers at some places (m,); if a place comes twice, the last number counts."""
        for level in self.levels:
            rows, columns = np.divmod(places, WIDTH)
            level[rows, columns] = numbers
            places, numbers = rows, level[rows].sum(1)

    def between(self, starts: Indices, ends: Indices) -> Numbers:
        """(m,) the sums of the numbers from each start to the place before each end."""
        total, column = np.zeros(len(starts)), np.arange(WIDTH)
        for level in self.levels:
            (first, left), (last, right) = np.divmod(starts, WIDTH), np.divmod(ends, WIDTH)
            # The ends of the range in its first and last row; the rows between them are numbers of the next level.
            stop = np.where(first == last, right, WIDTH)
            in_first = (column >= left[:, None]) & (column < stop[:, None])
            in_last = (column < right[:, None]) & (first < last)[:, None]
            total += np.where(in_first, level[first], 0).sum(1) + np.where(in_last, level[last], 0).sum(1)
            starts, ends = first + 1, np.maximum(first + 1, last)
        return total

    def find(self, target: float) -> int:
        """The place where the sum of all numbers up to it first exceeds a target from 0 to the total.

        For a uniformly random target, the probability of a place is proportional to its number.
        """
        place = 0
        for level in reversed(self.levels):
            sums = level[place].cumsum()
            column = min(sums.searchsorted(target, "right"), sums.searchsorted(sums[-1]))  # rounding can exceed the sum
            target -= sums[column] - level[place, column]
            place = place * WIDTH + int(column)
        return place
