"""Euclidean distances to a gallery, block by block; shared by neighbours, k-means and retrieval.

|q − g|² = |q|² + |g|² − 2 q·g computes a block as one matrix product, but its rounding error is of the order of |q|²,
which loses the order of close neighbours. Each block therefore has a bound of this error. Distances that differ by less
than the bound are computed again by subtraction in float64; "exact" means the order of those. If there are very many of
them, a product in float64, with its own bound, comes first.

The bound. Points are shifted by the gallery's mean and divided by a power of two. Let a and b be the exact results, A
and B their float32 values, u = 2⁻²⁴ (float64: 2⁻⁵³) and |A − a| ≤ u |a|. In D dimensions,

- the product adds D + 2 terms, 2 A·B and both squared lengths, whose absolute values sum to (|A| + |B|)² at most. In
  any order of summation, its error is at most (D + 2) u times that (Jeannerod and Rump, "Improved error bounds for
  inner products in floating-point arithmetic", SIAM J. Matrix Anal. Appl. 2013);
- the squared lengths are computed in float64 and rounded once, which adds u (|A| + |B|)²;
- |A − B| differs from |a − b| by u (|a| + |b|) at most, and their squares by 2 u (|a| + |b|)².

The sum is (D + 5) u (|A| + |B|)², where |B| is the longest of the gallery. The constant is raised by 2 to cover terms
in u², underflow (the longest |B| is at least 1, unless all gallery points coincide and have no order) and the rounding
of the comparison itself. In float64, the squared lengths are rounded sums of D terms too, which adds D u, and so are
the subtracted distances that define the order, which adds (D + 3) u.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nearkin.errors import UserError

BLOCK_BYTES = 32 * 2**20  # measured on the CPU: 16 MB and 64 MB are slower, and much smaller blocks far slower
CUDA_BLOCK_BYTES = 128 * 2**20  # estimated: launching the kernels of smaller blocks takes longer than computing
FEWEST_ROWS = 256  # a product of 40 rows takes 1.5 times as long per row; blocks grow to four times the size for them
CACHED_BYTES = 2**19  # measured: twice as fast as blocks of 32 MB
# If at least this share of a row is undecided, computing the whole row again is as fast: after float32 by a product in
# float64, after float64 by subtraction. Measured with 128 and 512 dimensions.
CROWDED = {torch.float32: 1 / 100, torch.float64: 1 / 8}
FAR = 2.0**40  # times the extent of the gallery; the squares of larger distances could overflow float32


def block_bytes_on(device: torch.device) -> int:
    """The size of a block of distances on this device, in bytes."""
    return CUDA_BLOCK_BYTES if device.type == "cuda" else BLOCK_BYTES


class Distances:
    """Distances from queries (Q, D) to one gallery (N, D), floating point. The gallery is prepared only once.

    >>> corners = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    >>> block = Distances(corners).block(corners[:2])
    >>> block.exact_rows(torch.tensor([1])).mul(block.scale).tolist()
    [[1.0, 0.0, 1.4142135623730951]]
    """

    def __init__(self, gallery: Tensor) -> None:
        self.gallery = _at_least_single(gallery)
        self._origin = self.gallery.mean(0, dtype=torch.float64).to(self.gallery.dtype)
        extent = _largest(self.gallery - self._origin)
        smallest = torch.finfo(self.gallery.dtype).tiny  # its inverse is finite
        self.scale = 2.0 ** (math.frexp(max(extent, smallest))[1] - 1) if extent else 1.0
        near = self._near(self.gallery, torch.float32)
        squared = _squared_lengths(near)
        self._longest = squared.max().sqrt() * (1 + 2.0**-20)  # the float64 value can be slightly larger
        self._ready = _columns(near, squared)

    def block(self, queries: Tensor) -> DistanceBlock:
        """The distances of some queries (Q, D). All of them must fit into memory; see `blocks`."""
        return self._block(queries)

    def blocks(self, queries: Tensor) -> Iterator[tuple[slice, DistanceBlock]]:
        """The distances of all queries (Q, D), some rows at a time. The next block overwrites the squares of the last.

        Fresh memory for each block would take as long as a third of the products.
        """
        size = block_bytes_on(queries.device)
        size = max(size, min(4 * len(self.gallery) * FEWEST_ROWS, 4 * size))
        rows = row_blocks(len(queries), len(self.gallery), size)
        memory = self._ready.new_empty(rows[0].stop if rows else 0, len(self.gallery))
        for these in rows:
            yield these, self._block(queries[these], memory[: these.stop - these.start])

    def finer_block(self, queries: Tensor) -> DistanceBlock:
        """Like `block`, but with products in float64, which take twice the memory and time."""
        queries = _at_least_single(queries)
        rows, slack = self._rows(queries, torch.float64)
        squares = rows.new_empty(len(rows), len(self.gallery))
        for part in row_blocks(len(self.gallery), 2 * rows.shape[1], block_bytes_on(rows.device)):
            near = self._near(self.gallery[part], torch.float64)
            squares[:, part] = _product(rows, _columns(near, _squared_lengths(near)))
        return DistanceBlock(squares, slack, queries, self)

    def _block(self, queries: Tensor, memory: Tensor | None = None) -> DistanceBlock:
        queries = _at_least_single(queries)
        rows, slack = self._rows(queries, torch.float32)
        return DistanceBlock(_product(rows, self._ready, memory), slack, queries, self)

    def _rows(self, queries: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The left factor of the product with `_columns`, (Q, D + 2), and the slack (Q, 1)."""
        moved = queries - self._origin
        _largest(moved)
        far = moved.abs().amax(1, keepdim=True) > FAR * self.scale
        near = self._near(queries, dtype).masked_fill_(far, 0)
        squared = _squared_lengths(near)
        dim = near.shape[1]
        units = dim + 7 if dtype == torch.float32 else 3 * dim + 10
        error = units * torch.finfo(dtype).eps / 2 * (squared.sqrt() + self._longest).square()
        rows = torch.cat([-2 * near, squared.to(dtype), torch.ones_like(near[:, :1])], 1)
        return rows, (2 * error).masked_fill_(far, torch.inf).to(dtype)

    def _near(self, points: Tensor, dtype: torch.dtype) -> Tensor:
        """Points shifted by the mean and divided by the scale, with each coordinate rounded once."""
        wide = torch.promote_types(torch.promote_types(points.dtype, self._origin.dtype), dtype)
        return (points.to(wide) - self._origin).div_(self.scale).to(dtype)


def _columns(near: Tensor, squared: Tensor) -> Tensor:
    # The squared lengths are two additional coordinates, so that a block is one product.
    return torch.cat([near, torch.ones_like(near[:, :1]), squared.to(near.dtype)], 1)


def _product(rows: Tensor, columns: Tensor, memory: Tensor | None = None) -> Tensor:
    with _full_precision(rows.device.type):
        return torch.mm(rows, columns.T, out=memory)


@dataclass(frozen=True, eq=False)
class DistanceBlock:
    """The distances from Q queries to N gallery points, in units of ``scale``, a power of two.

    Attributes:
        squares: (Q, N) squared distances with rounding errors, so some may be slightly negative; ∞ if excluded.
        slack: (Q, 1) if two squares of a query differ by more than this, the smaller one belongs to the closer point.
    """

    squares: Tensor
    slack: Tensor
    queries: Tensor
    to: Distances

    @property
    def scale(self) -> float:
        return self.to.scale

    @property
    def crowd(self) -> float:
        """The number of undecided columns above which a whole row is computed again."""
        return CROWDED[self.squares.dtype] * self.squares.shape[1]

    def __getitem__(self, rows: Tensor) -> DistanceBlock:
        return DistanceBlock(self.squares[rows], self.slack[rows], self.queries[rows], self.to)

    def finer(self, rows: Tensor) -> DistanceBlock | None:
        """The block of some queries (m,) in float64; None if this block is in float64, or if all points coincide."""
        if self.squares.dtype == torch.float64 or not bool(self.slack.any()):
            return None
        block = self.to.finer_block(self.queries[rows])
        block.squares.masked_fill_(self.squares[rows].isinf(), torch.inf)
        return block

    def exclude(self, own: Tensor) -> None:
        """Excludes one gallery point per query (Q,); −1 excludes none."""
        rows = (own >= 0).nonzero().squeeze(1)
        self.squares[rows, own[rows]] = torch.inf

    def exact(self, rows: Tensor, columns: Tensor) -> Tensor:
        """(P, m) distances from queries (P,) to gallery points chosen for each (P, m), by subtraction in float64."""
        found = torch.empty(columns.shape, dtype=torch.float64, device=columns.device)
        for block in _cached_blocks(rows, columns.shape[1] * self.queries.shape[1]):
            # Four times as fast as indexing with a matrix on the CPU.
            near = self.to.gallery.index_select(0, columns[block].flatten()).unflatten(0, columns[block].shape)
            found[block] = _subtracted(self.queries[rows[block], None], near, self.scale).squeeze(1)
        return found

    def exact_rows(self, rows: Tensor) -> Tensor:
        """(m, N) distances from queries (m,) to the whole gallery, by subtraction in float64; ∞ if excluded."""
        if not bool(self.slack.any()):  # all points coincide
            return self.squares[rows].double()
        found = torch.empty_like(self.squares[rows], dtype=torch.float64)
        for block in _cached_blocks(self.to.gallery, self.to.gallery.shape[1]):
            found[:, block] = _subtracted(self.queries[rows], self.to.gallery[block], self.scale)
        return found.masked_fill_(self.squares[rows].isinf(), torch.inf)


def row_blocks(rows: int, columns: int, block_bytes: int = BLOCK_BYTES) -> list[slice]:
    """Splits the rows of a float32 matrix into slices of at most ``block_bytes``, or of one row.

    >>> row_blocks(5, 100, block_bytes=800)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    step = max(1, block_bytes // (4 * max(1, columns)))
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def _cached_blocks(rows: Tensor, columns: int) -> list[slice]:
    """Splits the rows of a float64 matrix into slices that fit into the CPU cache; larger ones on other devices."""
    return row_blocks(
        len(rows), 2 * columns, CACHED_BYTES if rows.device.type == "cpu" else block_bytes_on(rows.device)
    )


def _at_least_single(x: Tensor) -> Tensor:
    return x.detach().to(torch.promote_types(x.dtype, torch.float32))


def _largest(moved: Tensor) -> float:
    largest = torch.stack(moved.aminmax()).abs().max().item() if moved.numel() else 0.0
    if not math.isfinite(largest):
        raise UserError("the vectors contain NaN or infinite values; remove those rows")
    return largest


def _squared_lengths(x: Tensor) -> Tensor:
    """(N, 1) in float64."""
    return torch.cat([x[rows].double().square().sum(1, keepdim=True) for rows in _cached_blocks(x, x.shape[1])])


def _subtracted(x: Tensor, y: Tensor, scale: float) -> Tensor:
    x, y = x.double(), y.double()
    unit = scale if not 2.0**-400 < scale < 2.0**400 else 1.0  # scale first if squares would overflow or underflow
    if unit != 1:
        x, y = x / unit, y / unit
    # Unlike other ways to subtract, square and add, this one rounds a pair the same in every batch.
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").mul_(unit / scale)


@contextmanager
def _full_precision(device: str) -> Iterator[None]:
    """Turns off autocast and reduced-precision float32 products (TF32, bfloat16), which training may use for speed."""
    with torch.autocast(device, enabled=False):
        try:
            before = [torch.get_float32_matmul_precision()]
            choose = [torch.set_float32_matmul_precision]
            exact = "highest"
        except RuntimeError:  # newer torch raises this if the precision was set through torch.backends
            backends: Any = torch.backends
            products = [backends.cuda.matmul, backends.mkldnn.matmul]
            before = [each.fp32_precision for each in products]
            choose = [partial(setattr, each, "fp32_precision") for each in products]
            exact = "ieee"
        try:
            for set_to in choose:
                set_to(exact)
            yield
        finally:
            for set_to, precision in zip(choose, before, strict=True):
                set_to(precision)
