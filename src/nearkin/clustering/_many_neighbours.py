"""The compiled part of `nearest_neighbours` for many neighbours on the CPU."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from nearkin.clustering._compiled import compiled

Single = npt.NDArray[np.float32]
Double = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@compiled
def collect(
    squares: Single, bounds: Single, queries: Double, gallery: Single, distances: Double, columns: Integers
) -> Integers:
    """Writes the columns of each row of squares (Q, N) up to its bound (Q,), ascending, and their distances.

    Distances are from queries (Q, D) to gallery points (N, D), by subtraction in float64. The outputs have shape
    (Q, width). Returns the number of columns up to the bound (Q,); those beyond the width are left out.
    """
    counts, width = np.empty(len(squares), np.int64), columns.shape[1]
    for i in range(len(squares)):
        row, bound, chosen, count = squares[i], bounds[i], columns[i], 0
        for j in range(len(row)):
            if row[j] <= bound:
                if count < width:
                    chosen[count] = j
                count += 1
        counts[i] = count
        for c in range(min(count, width)):
            distances[i, c] = _distance(queries[i], gallery[chosen[c]])
    return counts


@njit(fastmath={"reassoc", "contract"})  # sums several terms at once
def _distance(a: Double, b: Single) -> float:
    total = 0.0
    for d in range(len(a)):
        total += (a[d] - b[d]) ** 2
    return np.sqrt(total)  # type: ignore[no-any-return]
