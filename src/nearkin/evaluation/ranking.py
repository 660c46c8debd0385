"""The exact ranks of some columns in each row of a block of distances.

Rounded squares are compared first: a column whose square differs from that of the wanted column by more than the
block's slack is certainly nearer or farther. If few columns are undecided, their exact distances are compared pair by
pair. If many are, as in tight groups, the row is ranked again by squares in float64. If many are still undecided, for
example because many points coincide, the exact distances of the whole row are used. The lower column wins ties.

Three implementations count the columns that are certainly nearer; their results are identical.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearkin.clustering.distances import DistanceBlock, block_bytes_on, row_blocks
from nearkin.clustering.neighbours import lowest_columns, nearest_in

FEW = 12  # number of wanted columns in a row for which counting takes as long as sorting, on the CPU
MANY = 128  # the same on CUDA, where comparing a block takes less than a hundredth of sorting it; estimated

Squares = NDArray[np.float32] | NDArray[np.float64]


def rank(block: DistanceBlock, row: Tensor, column: Tensor, kept: int) -> tuple[Tensor, Tensor]:
    """The ranks of the wanted columns, and the nearest columns of each row.

    Args:
        block: the distances of Q queries to N columns.
        row: (P,) ascending, the queries of the wanted pairs.
        column: (P,) the columns of the wanted pairs.
        kept: number of nearest columns to return; at most the number of columns that are not excluded.

    Returns:
        Ranks (P,), from 1 and ascending within a row, and columns (Q, kept), nearest first.

    >>> from nearkin.clustering.distances import Distances
    >>> line = Distances(torch.tensor([[3.0], [1.0], [3.0], [2.0]])).block(torch.tensor([[0.0]]))
    >>> ranks, nearest = rank(line, torch.tensor([0, 0]), torch.tensor([1, 2]), kept=3)
    >>> ranks.tolist(), nearest.tolist()
    ([1, 4], [[1, 3, 0]])
    """
    squares, slack, n = block.squares, block.slack, block.squares.shape[1]
    wanted = squares[row, column]
    low, high = wanted - slack[row, 0], wanted + slack[row, 0]
    count = count_by_comparing if squares.is_cuda else count_by_row
    one_more = min(kept + 1, n) if kept else 0  # to check that the last place is certain
    nearer, up_to, lowest = count(squares, row, low, high, one_more)
    ranks, in_doubt = nearer + 1, up_to - nearer - 1
    crowded = torch.zeros_like(slack[:, 0], dtype=torch.long).index_add_(0, row, in_doubt) > block.crowd

    pairs = ((in_doubt > 0) & ~crowded[row]).nonzero().squeeze(1)
    for some in row_blocks(len(pairs), n, block_bytes_on(squares.device)):
        these = pairs[some]
        ranks[these] += _nearer_in_doubt(block, row[these], column[these], low[these], high[these])

    close = (squares.gather(1, lowest).diff() <= slack).any(1) & ~crowded
    lowest = lowest[:, :kept]
    if bool(close.any()):
        lowest[close] = nearest_in(block[close.nonzero().squeeze(1)], kept)[1]

    whole = crowded.nonzero().squeeze(1)
    for some in row_blocks(len(whole), 2 * n, block_bytes_on(squares.device)):
        these = whole[some]
        mine = torch.isin(row, these)
        places = torch.searchsorted(these, row[mine])
        finer = block.finer(these)
        if finer is not None:
            ranks[mine], lowest[these] = rank(finer, places, column[mine], kept)
        else:
            ranks[mine], lowest[these] = rank_by_sorting(block.exact_rows(these), places, column[mine], kept)
    return _ascending(ranks, row), lowest


def _nearer_in_doubt(block: DistanceBlock, row: Tensor, column: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """(P,) the number of columns with squares in low…high that are nearer than the wanted one, or as near and lower."""
    pair, other = _in_doubt(block.squares, row, low, high)
    theirs, mine = block.exact(row[pair], other[:, None])[:, 0], block.exact(row, column[:, None])[pair, 0]
    first = (theirs < mine) | ((theirs == mine) & (other < column[pair]))
    return torch.bincount(pair[first], minlength=len(row))


def _in_doubt(squares: Tensor, row: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The columns with squares in low…high (P,): the numbers of their pairs, ascending, and the columns."""
    if squares.is_cuda:
        squares = squares[row]
        pair, other = ((squares >= low[:, None]) & (squares <= high[:, None])).nonzero(as_tuple=True)
        return pair, other
    values, bounds = squares.numpy(), zip(row.tolist(), low.numpy(), high.numpy(), strict=True)
    found = [np.flatnonzero((values[i] >= least) & (values[i] <= most)) for i, least, most in bounds]
    pairs = np.repeat(np.arange(len(found)), [len(each) for each in found])
    return torch.from_numpy(pairs), torch.from_numpy(np.concatenate(found))


def rank_by_sorting(distances: Tensor, row: Tensor, column: Tensor, kept: int) -> tuple[Tensor, Tensor]:
    """The ranks, ascending within a row, and the nearest columns, by a stable sort of distances (rows, N).

    >>> distances = torch.tensor([[0.3, 0.1, 0.3, 0.2]])
    >>> ranks, lowest = rank_by_sorting(distances, torch.tensor([0, 0]), torch.tensor([1, 2]), kept=3)
    >>> ranks.tolist(), lowest.tolist()
    ([1, 4], [[1, 3, 0]])
    """
    order = distances.argsort(dim=1, stable=True)
    places = torch.arange(1, distances.shape[1] + 1, device=distances.device).expand_as(order)
    ranks = torch.empty_like(order).scatter_(1, order, places)[row, column]
    return _ascending(ranks, row), order[:, :kept]


def _ascending(ranks: Tensor, row: Tensor) -> Tensor:
    """The ranks (P,) sorted within each row."""
    return (row << 32 | ranks).sort().values & 0xFFFFFFFF


Counts = tuple[Tensor, Tensor, Tensor]


def count_by_comparing(squares: Tensor, row: Tensor, low: Tensor, high: Tensor, kept: int) -> Counts:
    """For each pair, the number of squares in its row that are < low (P,) and <= high (P,); and the nearest columns.

    Compares the whole block twice for each wanted column of a row, or sorts it if matches are many; for CUDA.

    >>> squares = torch.tensor([[0.3, 0.1, 0.3, 0.2]])
    >>> below, up_to, lowest = count_by_comparing(
    ...     squares, torch.tensor([0]), low=torch.tensor([0.25]), high=torch.tensor([0.3]), kept=2
    ... )
    >>> below.tolist(), up_to.tolist(), lowest.tolist()
    ([2], [4], [[1, 3]])
    """
    counts = torch.bincount(row, minlength=len(squares))
    most = int(counts.max())
    place = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
    lows, highs = (squares.new_full((len(squares), most), -torch.inf) for _ in range(2))
    lows[row, place], highs[row, place] = low, high
    if most > MANY:
        ascending, order = squares.sort(dim=1, stable=True)
        below, up_to = torch.searchsorted(ascending, lows), torch.searchsorted(ascending, highs, right=True)
        return below[row, place], up_to[row, place], order[:, :kept]
    below, up_to = (torch.empty_like(lows, dtype=torch.long) for _ in range(2))
    matches = torch.empty_like(squares, dtype=torch.float16)  # CUDA sums float16 in float32 without a copy
    for i in range(most):
        torch.lt(squares, lows[:, i, None], out=matches)
        below[:, i] = matches.sum(1, dtype=torch.float32)
        torch.le(squares, highs[:, i, None], out=matches)
        up_to[:, i] = matches.sum(1, dtype=torch.float32)
    return below[row, place], up_to[row, place], lowest_columns(squares, kept)


def count_by_row(squares: Tensor, row: Tensor, low: Tensor, high: Tensor, kept: int) -> Counts:
    """Like `count_by_comparing`, row by row, and only for columns up to the last wanted one; for the CPU.

    Uses numpy, which vectorises comparing and sorting a row and keeps it in the cache; sorting the block in torch takes
    ten times as long. Threads do not help, because each call is too short.

    >>> squares = torch.tensor([[0.3, 0.1, 0.3, 0.2]])
    >>> below, up_to, lowest = count_by_row(
    ...     squares, torch.tensor([0]), low=torch.tensor([0.25]), high=torch.tensor([0.3]), kept=2
    ... )
    >>> below.tolist(), up_to.tolist(), lowest.tolist()
    ([2], [4], [[1, 3]])
    """
    ends = torch.bincount(row, minlength=len(squares)).cumsum(0).tolist()
    starts = [0, *ends[:-1]]
    below, up_to = np.empty((2, len(row)), dtype=np.int64)
    lowest = np.empty((len(squares), kept), dtype=np.int64)
    rows, lows, highs = squares.numpy(), low.numpy(), high.numpy()
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        mine, values = slice(start, end), rows[i]
        bound = _bound(values, kept)
        near = values <= highs[mine].max(initial=bound)
        sorting = np.count_nonzero(near) * FEW <= len(values) * (end - start + 1)
        columns = np.flatnonzero(near if sorting else values <= bound)
        found = values[columns]
        if sorting:
            ascending = np.sort(found)
            below[mine], up_to[mine] = ascending.searchsorted(lows[mine]), ascending.searchsorted(highs[mine], "right")
        else:
            below[mine] = [np.count_nonzero(values < least) for least in lows[mine]]
            up_to[mine] = [np.count_nonzero(values <= most) for most in highs[mine]]
        low_enough = found <= bound
        lowest[i] = columns[low_enough][found[low_enough].argsort(kind="stable")[:kept]]
    return torch.from_numpy(below), torch.from_numpy(up_to), torch.from_numpy(lowest)


def _bound(row: Squares, kept: int) -> float:
    """An upper bound of the kept-th lowest square: the kept-th lowest minimum of at least ``kept`` parts of the row."""
    if kept == 0:
        return -math.inf
    length = math.isqrt(len(row) // kept)
    minima = row[: len(row) // length * length].reshape(length, -1).min(0)
    return float(np.partition(minima, kept - 1)[kept - 1])
