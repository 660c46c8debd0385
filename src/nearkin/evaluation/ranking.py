"""The ranks of some columns in every row of a block of distances, in two ways that agree to the last tie.

Both take ``block`` (rows, N), non-negative float32, and the wanted columns as pairs: ``row`` (P,) ascending and
``column`` (P,). Both return the ranks (P,), from 1 and ascending within a row, and the ``kept`` lowest columns of
every row (rows, kept) in order. Of equal distances the lower column comes first.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

FEW = 12  # up to so many wanted columns counting beats sorting where it matters, for N from 20,000

Distances = NDArray[np.float32]
Columns = NDArray[np.int64]


def rank_by_sorting(block: Tensor, row: Tensor, column: Tensor, kept: int) -> tuple[Tensor, Tensor]:
    """By a stable sort of every row; for CUDA.

    >>> block = torch.tensor([[0.3, 0.1, 0.3, 0.2]])
    >>> ranks, lowest = rank_by_sorting(block, torch.tensor([0, 0]), torch.tensor([1, 2]), kept=3)
    >>> ranks.tolist(), lowest.tolist()
    ([1, 4], [[1, 3, 0]])
    """
    order = block.argsort(dim=1, stable=True)
    places = torch.arange(1, block.shape[1] + 1, device=block.device).expand_as(order)
    ranks = torch.empty_like(order).scatter_(1, order, places)[row, column]
    ascending = (row * (block.shape[1] + 1) + ranks).sort().values % (block.shape[1] + 1)
    return ascending, order[:, :kept]


def rank_by_counting(block: Tensor, row: Tensor, column: Tensor, kept: int) -> tuple[Tensor, Tensor]:
    """Row by row without sorting where few columns are wanted; for the CPU.

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
    distances, columns, numbers = block.numpy(), column.numpy(), np.arange(block.shape[1])

    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        rank = _count if end - start <= FEW else _sort
        ranks[start:end], lowest[i] = rank(distances[i], columns[start:end], numbers, kept)
    return torch.from_numpy(ranks), torch.from_numpy(lowest)


def _count(row: Distances, wanted: Columns, numbers: Columns, kept: int) -> tuple[Columns, Columns]:
    """Counts what comes before each wanted column; the lowest are all up to the kept-th value, then sorted."""
    ranks = [1 + np.count_nonzero(row[:c] <= row[c]) + np.count_nonzero(row[c + 1 :] < row[c]) for c in wanted.tolist()]
    low = np.flatnonzero(row <= np.partition(row, kept - 1)[kept - 1]) if kept else numbers[:0]
    lowest = low[np.argsort(row[low], kind="stable")][:kept]
    return np.sort(np.array(ranks, dtype=np.int64)), lowest


def _sort(row: Distances, wanted: Columns, numbers: Columns, kept: int) -> tuple[Columns, Columns]:
    """Sorts one integer per column: the bits of its distance (ordered, as none is negative) above its number."""
    keys = (row.view(np.int32).astype(np.int64) << 32) | numbers
    keys_of_wanted = np.sort(keys[wanted])
    keys.sort()
    return 1 + np.searchsorted(keys, keys_of_wanted), keys[:kept] & 0xFFFFFFFF
