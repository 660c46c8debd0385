"""Exact nearest neighbours on any device, in blocks of the distance matrix.

A matrix product finds candidates. The distances that are sorted and returned are computed by subtraction in float64.
Where rounding could hide a closer item, all items in question are compared.
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
    """Finds the k nearest gallery rows of every query, by Euclidean distance in float64.

    Distances are ascending. Of equal distances the lowest gallery row comes first, also at the k-th place.

    Args:
        queries: (Q, D) floating point.
        gallery: (N, D) on the same device.
        k: number of neighbours, at most N, or N − 1 if a row is excluded.
        exclude: (Q,) a gallery row that is not returned for this query, usually the query itself; −1 for none.

    Returns:
        distances (Q, k), float64 if queries or gallery are, otherwise rounded to float32; and gallery rows (Q, k).

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


def _check(queries: Tensor, gallery: Tensor, k: int, exclude: Tensor | None) -> None:
    if queries.ndim != 2 or gallery.ndim != 2 or queries.shape[1] != gallery.shape[1]:
        raise UserError(
            f"queries and gallery need the shapes (Q, D) and (N, D), not {tuple(queries.shape)} "
            f"and {tuple(gallery.shape)}"
        )
    if exclude is not None and exclude.shape != (len(queries),):
        raise UserError(f"exclude has shape {tuple(exclude.shape)}, but there are {len(queries)} queries")
    one_less = exclude is not None and bool((exclude >= 0).any())
    available = len(gallery) - one_less
    if not 1 <= k <= available:
        raise UserError(
            f"k={k} neighbours cannot be found: the gallery has {len(gallery)} rows"
            f"{' and a query is never its own neighbour' if one_less else ''}; choose k from 1 to {available}"
        )


def nearest_in(block: DistanceBlock, k: int) -> tuple[Tensor, Tensor]:
    """The same in a block of distances: (Q, k) distances, in float64 and in units of its scale, and columns (Q, k).

    Where fewer than k columns are left that were not excluded, the others come last, at the distance ∞.
    """
    n = block.squares.shape[1]
    # A few more, to see that the k-th place is not disputed. The farther out, the closer together distances are.
    squares, columns = _lowest(block.squares, min(k + 2 + k // 50, n))
    rows = torch.arange(len(columns), device=columns.device)
    distances = block.exact(rows, columns).masked_fill_(squares.isinf(), torch.inf)
    distances, columns = _in_order(distances, columns)
    limit = distances[:, k - 1 : k].square() + block.slack  # what has a larger square is farther than these k
    farthest = squares.amax(1, keepdim=True)
    disputed = ((limit >= farthest) & farthest.isfinite()).squeeze(1).nonzero().squeeze(1)
    distances, columns = distances[:, :k], columns[:, :k]
    if len(squares[0]) < n:
        for these in row_blocks(len(disputed), 2 * n, block_bytes_on(columns.device)):
            again = disputed[these]
            distances[again], columns[again] = _nearest_below(block[again], limit[again], k)
    return distances, columns


def _nearest_below(block: DistanceBlock, limit: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The same, of all columns whose squares are up to a limit (Q, 1)."""
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
    """The m lowest values of every row and their columns, (rows, m) each, in any order."""
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
    """(rows, m) the columns of the m lowest values of every row (rows, N), ascending; of equal ones the lower first.

    They lie in the m runs of neighbouring columns whose minima are lowest, so that the block is read only once. For
    CUDA, where ``topk`` reads it several times; besides, that may return any of equal values.

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
