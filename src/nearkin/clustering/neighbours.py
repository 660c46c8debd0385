"""Exact nearest neighbours on any device, in blocks of the distance matrix.

A matrix product finds candidates. Their distances are then computed by subtraction in float64, sorted and returned. If
rounding could hide a closer item, all items in question are compared.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nearkin.clustering.distances import DistanceBlock, Distances, block_bytes_on, row_blocks
from nearkin.errors import UserError

FEW = 64  # for at most this many of the lowest values, one `topk` is as fast as two


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
    for these in row_blocks(len(queries), len(gallery), block_bytes_on(queries.device)):
        block = to_gallery.block(queries[these])
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
    to_all = Distances(x)
    for these in row_blocks(len(x), len(x), block_bytes_on(x.device)):
        block = to_all.block(x[these])
        block.squares.masked_fill_(groups[these, None] == groups, torch.inf)
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
    n = block.squares.shape[1]
    # A few more, to check that the k-th place is certain. The farther out, the closer together the distances are.
    squares, columns = _lowest(block.squares, min(k + 2 + k // 50, n))
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
    length = math.isqrt(n // m) if m > FEW else 1
    if length > 1:
        # They lie in the m runs with the lowest minima. A run has every so many-th column, so that the processor finds
        # the minima of many runs at once.
        runs = n // length
        minima = squares[:, : runs * length].unflatten(1, (length, runs)).amin(1)
        first = minima.topk(m, largest=False, sorted=False).indices
        left_over = torch.arange(runs * length, n).expand(len(squares), -1)
        columns = torch.cat([*(first + start for start in range(0, runs * length, runs)), left_over], 1)
        squares = squares.gather(1, columns)
    found = squares.topk(m, largest=False, sorted=False)
    return found.values, columns.gather(1, found.indices) if length > 1 else found.indices


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
