"""Nearest neighbours, exactly, in blocks of the distance matrix on any device.

The search itself finds candidates by |q|² + |g|² − 2 q·g; the distances that are put in order and returned are
computed by subtraction, so that coincident points are at distance 0 and devices differ only in how a sum is rounded.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nearkin.clustering.distances import SquaredDistances, block_bytes_on, near_origin, row_blocks
from nearkin.errors import UserError


def nearest_neighbours(
    queries: Tensor, gallery: Tensor, k: int, exclude: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The k nearest gallery rows of every query, by Euclidean distance.

    Ascending; of equal distances the lowest gallery row comes first, at the k-th place too. (What differs from
    the k-th distance by less than the rounding error of the search, about 1e-7 of the squared extent of the
    gallery, may be taken for it.)

    Args:
        queries: (Q, D) floating point.
        gallery: (N, D) on the same device.
        k: how many; at most N, or N − 1 where a row is excluded.
        exclude: (Q,) the gallery row that is never returned for this query, its own; −1 for none.

    Returns:
        distances (Q, k) in float32 and gallery rows (Q, k).

    >>> line = torch.tensor([[0.0], [1.0], [3.0]])
    >>> distances, rows = nearest_neighbours(line, line, k=1, exclude=torch.arange(3))
    >>> distances.tolist(), rows.tolist()
    ([[1.0], [1.0], [2.0]], [[1], [0], [1]])
    """
    _check(queries, gallery, k, exclude)
    if len(queries) == 0:
        return queries.new_empty(0, k, dtype=torch.float32), queries.new_empty(0, k, dtype=torch.long)
    queries, gallery, scale = near_origin(queries, gallery)
    if exclude is None:
        exclude = torch.full((len(queries),), -1)
    exclude = exclude.to(queries.device)[:, None]
    # One more for the excluded row, and one more to see whether the k-th place is shared.
    candidates = _candidates(queries, gallery, min(k + 2, len(gallery)))
    distances = _distances_to(queries, gallery, candidates).masked_fill_(candidates == exclude, torch.inf)
    distances, rows = _in_order(distances, candidates)
    if k + 2 < len(gallery):
        shared = (distances[:, k - 1] == distances[:, k]).nonzero().squeeze(1)
        distances, rows = distances[:, :k], rows[:, :k]
        for block in _blocks(shared, len(gallery)):
            these = shared[block]
            distances[these], rows[these] = _whole_row(queries[these], gallery, k, exclude[these])
    return distances[:, :k] * scale, rows[:, :k]


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


def _candidates(queries: Tensor, gallery: Tensor, m: int) -> Tensor:
    """(Q, m) gallery rows, the nearest in any order."""
    squared_distances = SquaredDistances(gallery)
    blocks = (squared_distances.rounded(queries[rows]) for rows in _blocks(queries, len(gallery)))
    if gallery.is_cuda:
        return torch.cat([lowest_columns(block, m) for block in blocks])
    return torch.cat([block.topk(m, largest=False).indices for block in blocks])


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


def _distances_to(queries: Tensor, gallery: Tensor, rows: Tensor) -> Tensor:
    """(Q, m) distances of each query to its own gallery rows (Q, m)."""
    distances = torch.empty(rows.shape, device=queries.device)
    for block in _blocks(queries, rows.shape[1] * queries.shape[1]):
        distances[block] = (queries[block, None] - gallery[rows[block]]).square_().sum(2).sqrt_()
    return distances


def _blocks(rows: Tensor, columns: int) -> list[slice]:
    return row_blocks(len(rows), columns, block_bytes_on(rows.device))


def _in_order(distances: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Sorted by distance, then by row: two stable sorts, the last one counts most."""
    rows, by_row = rows.sort(dim=1)
    distances, by_distance = distances.gather(1, by_row).sort(dim=1, stable=True)
    return distances, rows.gather(1, by_distance)


def _whole_row(queries: Tensor, gallery: Tensor, k: int, exclude: Tensor) -> tuple[Tensor, Tensor]:
    """The k nearest by a stable sort of all distances, for queries whose k-th place is shared by several."""
    distances = torch.cdist(queries, gallery, compute_mode="donot_use_mm_for_euclid_dist")
    own = torch.arange(len(gallery), device=gallery.device) == exclude
    distances, rows = distances.masked_fill_(own, torch.inf).sort(dim=1, stable=True)
    return distances[:, :k], rows[:, :k]
