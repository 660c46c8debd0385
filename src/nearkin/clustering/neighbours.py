"""Exact nearest neighbours on any device, in blocks of the distance matrix.

A matrix product finds candidates. Their distances are then computed by subtraction in float64, sorted and returned. If
rounding could hide a closer item, all items in question are compared.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from nearkin.clustering.distances import DistanceBlock, Distances, block_bytes_on, row_blocks
from nearkin.clustering.groups import GroupMembers
from nearkin.errors import UserError

LONGEST_RUN = 16  # measured on the CPU: finding the minima of longer runs takes up to three times as long
MANY = 2**24  # coordinates of candidates in a block from which compiled code is used; importing numba takes 0.8 s


def nearest_neighbours(
    queries: Tensor, gallery: Tensor, k: int, exclude: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Finds the k nearest gallery rows of each query, by Euclidean distance in float64.

    Distances are ascending. The lowest gallery row wins ties, also at the k-th place.

    Args:
        queries: (Q, D) floating point.
        gallery: (N, D) on the same device.
        k: number of neighbours, at most N, or N − 1 if a row is excluded.
        exclude: (Q,) a gallery row to exclude for each query, usually the query itself; −1 excludes none.

    Returns:
        Distances (Q, k), in float64 if queries or gallery are, otherwise rounded to float32; and gallery rows (Q, k).

    >>> line = torch.tensor([[0.0], [1.0], [3.0]])
    >>> distances, rows = nearest_neighbours(line, line, k=1, exclude=torch.arange(3))
    >>> distances.tolist(), rows.tolist()
    ([[1.0], [1.0], [2.0]], [[1], [0], [1]])
    """
    _check(queries, gallery, k, exclude)
    dtype = torch.promote_types(torch.promote_types(queries.dtype, gallery.dtype), torch.float32)
    distances = queries.new_empty(len(queries), k, dtype=dtype)
    rows = queries.new_empty(len(queries), k, dtype=torch.long)
    to_gallery = Distances(gallery)
    for these, block in to_gallery.blocks(queries):
        if exclude is not None:
            block.exclude(exclude[these].to(queries.device))
        found, rows[these] = nearest_in(block, k)
        distances[these] = found * block.scale
    return distances, rows


def nearest_in_other_groups(x: Tensor, groups: Tensor, k: int) -> Tensor:
    """Finds the k nearest rows of other groups for every row, by Euclidean distance in float64.

    Args:
        x: (N, D) floating point.
        groups: (N,) integers on the same device.
        k: number of neighbours.

    Returns:
        (N, k) rows of ``x``, nearest first, the lowest first among equals; −1 where there are fewer than k.

    >>> line = torch.tensor([[0.0], [1.0], [3.0], [4.0]])
    >>> nearest_in_other_groups(line, torch.tensor([0, 0, 1, 1]), k=3).tolist()
    [[2, 3, -1], [2, 3, -1], [1, 0, -1], [1, 0, -1]]
    """
    found = torch.full((len(x), k), -1, device=x.device)
    k = min(k, len(x))
    own = GroupMembers(groups, groups)
    for these, block in Distances(x).blocks(x):
        block.squares[own.pairs(these)] = torch.inf
        distances, rows = nearest_in(block, k)
        found[these, :k] = rows.masked_fill_(distances.isinf(), -1)
    return found


def _check(queries: Tensor, gallery: Tensor, k: int, exclude: Tensor | None) -> None:
    if queries.ndim != 2 or gallery.ndim != 2 or queries.shape[1] != gallery.shape[1]:
        raise UserError(
            f"queries and gallery must have shapes (Q, D) and (N, D), got {tuple(queries.shape)} "
            f"and {tuple(gallery.shape)}"
        )
    if exclude is not None and exclude.shape != (len(queries),):
        raise UserError(f"exclude must have shape ({len(queries)},), one row per query, got {tuple(exclude.shape)}")
    one_less = exclude is not None and bool((exclude >= 0).any())
    available = len(gallery) - one_less
    if not 1 <= k <= available:
        raise UserError(
            f"k must be from 1 to {available}, because the gallery has {len(gallery)} rows"
            f"{' and a query is not its own neighbour' if one_less else ''}, got {k}"
        )


def nearest_in(block: DistanceBlock, k: int) -> tuple[Tensor, Tensor]:
    """The k nearest columns of a block: distances (Q, k), in float64 and in units of its scale, and columns (Q, k).

    If a query has fewer than k columns that are not excluded, excluded ones come last, at distance ∞.
    """
    by_bound = (
        block.squares.device.type == "cpu"
        and block.squares.dtype == block.queries.dtype == block.to.gallery.dtype == torch.float32
        and k * block.queries.numel() >= MANY
        and 4 * _candidates(k) <= block.squares.shape[1]
        and torch.get_num_threads() < 4  # compiled code uses one
    )
    return _nearest_by_bound(block, k) if by_bound else _nearest_by_topk(block, k)


def _candidates(k: int) -> int:
    # A few more, to check that the k-th place is certain. The farther out, the closer together the distances are.
    return k + 2 + k // 50


def _nearest_by_topk(block: DistanceBlock, k: int) -> tuple[Tensor, Tensor]:
    n = block.squares.shape[1]
    squares, columns = _lowest(block.squares, min(_candidates(k), n))
    rows = torch.arange(len(columns), device=columns.device)
    distances = block.exact(rows, columns).masked_fill_(squares.isinf(), torch.inf)
    distances, columns = _in_order(distances, columns)
    limit = distances[:, k - 1 : k].square() + block.slack  # columns with larger squares are farther than these k
    farthest = squares.amax(1, keepdim=True)
    disputed = ((limit >= farthest) & farthest.isfinite()).squeeze(1).nonzero().squeeze(1)
    distances, columns = distances[:, :k], columns[:, :k]
    if squares.shape[1] < n:
        for these in row_blocks(len(disputed), 2 * n, block_bytes_on(columns.device)):
            again = disputed[these]
            distances[again], columns[again] = _nearest_below(block[again], limit[again], k)
    return distances, columns


def _nearest_by_bound(block: DistanceBlock, k: int) -> tuple[Tensor, Tensor]:
    """The same for many neighbours on the CPU, in half the time.

    At least m squares are up to the m-th lowest minimum of a run, and seldom many more. Compiled code collects them and
    computes their distances at once.
    """
    from nearkin.clustering._many_neighbours import collect

    m = _candidates(k)
    minima = _minima_of_runs(block.squares, math.isqrt(block.squares.shape[1] // m))
    bounds = np.partition(minima.numpy(), m - 1)[:, m - 1]  # takes two thirds of the time of `topk`
    width = m + m // 2
    found = torch.full((len(bounds), width), torch.inf, dtype=torch.float64)
    columns = torch.zeros_like(found, dtype=torch.long)
    inputs = (block.squares, torch.from_numpy(bounds), block.queries.double(), block.to.gallery)
    counts = torch.from_numpy(collect(*(x.contiguous().numpy() for x in inputs), found.numpy(), columns.numpy()))
    found = found[:, : counts.max()].div_(block.scale)
    order = torch.from_numpy(np.argsort(found.numpy()))  # takes half the time of torch's
    tied = (found.gather(1, order).diff() == 0).any(1)
    order[tied] = found[tied].argsort(dim=1, stable=True)  # columns are ascending, so the lowest wins
    distances, columns = found.gather(1, order[:, :k]), columns.gather(1, order[:, :k])
    limit = distances[:, k - 1].square() + block.slack[:, 0]
    disputed = ((limit >= torch.from_numpy(bounds)) | (counts > width)).nonzero().squeeze(1)
    if len(disputed):
        distances[disputed], columns[disputed] = _nearest_by_topk(block[disputed], k)
    return distances, columns


def _nearest_below(block: DistanceBlock, limit: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k nearest among all columns whose squares are at most a limit (Q, 1)."""
    rows = torch.arange(len(limit), device=limit.device)
    most = int((block.squares <= limit).sum(1).max())
    if most > k + 2 + block.crowd:
        finer = block.finer(rows)
        if finer is not None:
            return nearest_in(finer, k)
        found = block.exact_rows(rows).sort(dim=1, stable=True)
        return found.values[:, :k], found.indices[:, :k]
    squares, columns = _lowest(block.squares, most)
    distances = block.exact(rows, columns).masked_fill_(squares.isinf(), torch.inf)
    distances, columns = _in_order(distances, columns)
    return distances[:, :k], columns[:, :k]


def _lowest(squares: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """The m lowest values of each row and their columns, (rows, m) each, in any order."""
    if squares.is_cuda:
        columns = lowest_columns(squares, m)
        return squares.gather(1, columns), columns
    n = squares.shape[1]
    length = min(math.isqrt(n // max(m, 1)), LONGEST_RUN)
    if length < 2:
        lowest, columns = squares.topk(m, largest=False, sorted=False)
        return lowest, columns
    # They are in the m runs with the lowest minima.
    minima = _minima_of_runs(squares, length)
    runs = minima.shape[1]
    first = minima.topk(m, largest=False, sorted=False).indices
    in_runs = (first[:, None] + torch.arange(0, runs * length, runs)[:, None]).flatten(1)
    columns = torch.cat([in_runs, torch.arange(runs * length, n).expand(len(squares), -1)], 1)
    lowest, places = squares.gather(1, columns).topk(m, largest=False, sorted=False)
    return lowest, columns.gather(1, places)


def _minima_of_runs(squares: Tensor, length: int) -> Tensor:
    """(rows, runs); a run has every so many-th column, so that the processor finds many minima at once.

    The number of runs is odd. Otherwise, all columns of a run may belong to one class if classes take turns.
    """
    runs = squares.shape[1] // length - 1 | 1
    in_runs: Tensor = squares[:, : runs * length].unflatten(1, (length, runs))
    return in_runs.amin(1)


def lowest_columns(block: Tensor, m: int) -> Tensor:
    """(rows, m) the columns of the m lowest values of each row (rows, N), by ascending value; lower columns win ties.

    They are in the m runs of adjacent columns with the lowest minima, so the block is read only once. Used on CUDA,
    where ``topk`` reads it several times and may return any of equal values.

    >>> lowest_columns(torch.tensor([[0.3, 0.1, 0.3, 0.2]]), 3).tolist()
    [[1, 3, 0]]
    """
    columns = torch.arange(block.shape[1], device=block.device)
    if m == 0:
        return columns[:0].expand(len(block), 0)
    length = math.isqrt(len(columns) // m)
    in_runs = len(columns) // length * length
    minima = block[:, :in_runs].unflatten(1, (-1, length)).amin(2)
    runs = minima.sort(dim=1, stable=True).indices[:, :m].sort(dim=1).values
    left_over = columns[in_runs:].expand(len(block), -1)
    candidates = torch.cat([(runs[:, :, None] * length + columns[:length]).flatten(1), left_over], 1)
    order = block.gather(1, candidates).sort(dim=1, stable=True).indices[:, :m]
    return candidates.gather(1, order)


def _in_order(distances: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Sorted by distance, then by row."""
    in_order, by_distance = distances.sort(dim=1)
    if bool((in_order[:, 1:] == in_order[:, :-1]).any()):
        rows, by_row = rows.sort(dim=1)  # two sorts, the last one counts most
        in_order, by_distance = distances.gather(1, by_row).sort(dim=1, stable=True)
    return in_order, rows.gather(1, by_distance)
