"""The ranks of some columns in every row of a block of distances, in three ways that agree to the last tie.

All take ``block`` (rows, N), non-negative float32, and the wanted columns as pairs: ``row`` (P,) ascending and
``column`` (P,). All return the ranks (P,), from 1 and ascending within a row, and the ``kept`` lowest columns of
every row (rows, kept) in order. Of equal distances the lower column comes first.

Two use that the bits of non-negative floats, read as whole numbers, are in the same order.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearkin.clustering.neighbours import lowest_columns

FEW = 12  # so many wanted columns in a row make counting as long as sorting, on the CPU
MANY = 128  # the same on CUDA, where a comparison of the block takes less than a hundredth of a sort; estimated

Distances = NDArray[np.float32]
Columns = NDArray[np.int64]


def rank_by_sorting(block: Tensor, row: Tensor, column: Tensor, kept: int) -> tuple[Tensor, Tensor]:
    """By a stable sort of every row.

    >>> block = torch.tensor([[0.3, 0.1, 0.3, 0.2]])
    >>> ranks, lowest = rank_by_sorting(block, torch.tensor([0, 0]), torch.tensor([1, 2]), kept=3)
    >>> ranks.tolist(), lowest.tolist()
    ([1, 4], [[1, 3, 0]])
    """
    order = block.argsort(dim=1, stable=True)
    places = torch.arange(1, block.shape[1] + 1, device=block.device).expand_as(order)
    ranks = torch.empty_like(order).scatter_(1, order, places)[row, column]
    return _ascending(ranks, row), order[:, :kept]


def rank_by_comparing(block: Tensor, row: Tensor, column: Tensor, kept: int) -> tuple[Tensor, Tensor]:
    """By one comparison of the whole block for each wanted column of a row, unless these are many; for CUDA.

    >>> block = torch.tensor([[0.3, 0.1, 0.3, 0.2]])
    >>> ranks, lowest = rank_by_comparing(block, torch.tensor([0, 0]), torch.tensor([1, 2]), kept=3)
    >>> ranks.tolist(), lowest.tolist()
    ([1, 4], [[1, 3, 0]])
    """
    counts = torch.bincount(row, minlength=len(block))
    most = int(counts.max())
    if most > MANY:
        return rank_by_sorting(block, row, column, kept)
    place = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
    wanted = column.new_zeros(len(block), most)
    wanted[row, place] = column
    ranks = torch.empty_like(wanted)
    numbers, bits = torch.arange(block.shape[1], device=block.device), block.view(torch.int32)
    comes_before = torch.empty_like(block, dtype=torch.float16)  # CUDA sums halves in float32 without a copy
    for i in range(most):
        mine = wanted[:, i, None]
        torch.lt(bits, bits.gather(1, mine) + (numbers < mine), out=comes_before)  # one more: equal ones count too
        ranks[:, i] = 1 + comes_before.sum(1, dtype=torch.float32)
    return _ascending(ranks[row, place], row), lowest_columns(block, kept)


def _ascending(ranks: Tensor, row: Tensor) -> Tensor:
    """The ranks (P,) sorted within each row."""
    return (row << 32 | ranks).sort().values & 0xFFFFFFFF


def rank_by_counting(block: Tensor, row: Tensor, column: Tensor, kept: int) -> tuple[Tensor, Tensor]:
    """Row by row, looking only at what comes before the last wanted column; for the CPU.

    In numpy, whose comparisons and sorts of a row are vectorised and stay in the cache: sorting the block by torch
    takes ten times as long. Threads do not help, the single calls are too short.

    >>> block = torch.tensor([[0.3, 0.1, 0.3, 0.2]])
    >>> ranks, lowest = rank_by_counting(block, torch.tensor([0, 0]), torch.tensor([1, 2]), kept=3)
    >>> ranks.tolist(), lowest.tolist()
    ([1, 4], [[1, 3, 0]])
    """
    ends = torch.bincount(row, minlength=len(block)).cumsum(0).tolist()
    starts = [0, *ends[:-1]]
    ranks = np.empty(len(row), dtype=np.int64)
    lowest = np.empty((len(block), kept), dtype=np.int64)
    distances, columns = block.numpy(), column.numpy()
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        ranks[start:end], lowest[i] = _rank(distances[i], columns[start:end], kept)
    return torch.from_numpy(ranks), torch.from_numpy(lowest)


def _rank(row: Distances, wanted: Columns, kept: int) -> tuple[Columns, Columns]:
    low = row <= max(row[wanted].max(initial=0), _bound(row, kept))
    if np.count_nonzero(low) * FEW > len(row) * (len(wanted) + 1):
        return _count(row, wanted, kept)
    return _sort(row, wanted, kept, np.flatnonzero(low))


def _bound(row: Distances, kept: int) -> np.float32:
    """At least the kept-th lowest distance: the kept-th lowest of the minima of that many or more parts of the row."""
    if kept == 0:
        return np.float32(0)
    length = math.isqrt(len(row) // kept)
    minima = row[: len(row) // length * length].reshape(length, -1).min(0)
    return np.float32(np.partition(minima, kept - 1)[kept - 1])


def _count(row: Distances, wanted: Columns, kept: int) -> tuple[Columns, Columns]:
    """Counts what comes before each wanted column; the lowest are all up to a bound, then sorted."""
    ranks = [1 + np.count_nonzero(row[:c] <= row[c]) + np.count_nonzero(row[c + 1 :] < row[c]) for c in wanted.tolist()]
    low = np.flatnonzero(row <= _bound(row, kept))
    return np.sort(np.array(ranks, dtype=np.int64)), low[np.argsort(row[low], kind="stable")][:kept]


def _sort(row: Distances, wanted: Columns, kept: int, low: Columns) -> tuple[Columns, Columns]:
    """Sorts one integer per low column, which the wanted are among: the bits of its distance above its number."""
    keys = (row[low].view(np.int32).astype(np.int64) << 32) | low
    keys_of_wanted = np.sort(keys[np.searchsorted(low, wanted)])
    keys.sort()
    return 1 + np.searchsorted(keys, keys_of_wanted), keys[:kept] & 0xFFFFFFFF
