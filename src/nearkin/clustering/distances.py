"""Squared Euclidean distances, block by block: the one distance matrix of neighbours, k-means and retrieval.

|q − g|² = |q|² + |g|² − 2 q·g makes a block one matrix product, but leaves a rounding error of the size of
|q|² in it: points that lie close together far from the origin would all look alike. `near_origin` therefore
moves the points around the origin first, which leaves every distance as it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nearkin.errors import UserError

BLOCK_BYTES = 32 * 2**20  # measured on the CPU: 16 MB and 64 MB are slower, smaller ones by far
CUDA_BLOCK_BYTES = 128 * 2**20  # estimated: for smaller ones launching takes longer than computing


def block_bytes_on(device: torch.device) -> int:
    """How large a block of distances to hold at a time there."""
    return CUDA_BLOCK_BYTES if device.type == "cuda" else BLOCK_BYTES


def near_origin(queries: Tensor, gallery: Tensor) -> tuple[Tensor, Tensor, float]:
    """Both sets moved around the origin, scaled to at most 1, in float32; and the scale they were divided by.

    The new origin is the gallery point nearest to the mean and the scale a power of two: unlike the mean
    itself, they keep whole-number coordinates exact, so that equal distances stay equal. The scale keeps the
    squares of very large and very small coordinates within float32.

    Args:
        queries: (Q, D) floating point.
        gallery: (N, D) floating point.

    >>> near, _, scale = near_origin(torch.tensor([[1e6 + 3, 0.0]]), torch.tensor([[1e6, 0.0]]))
    >>> (near * scale).tolist()
    [[3.0, 0.0]]
    """
    queries, gallery = (x.detach().to(torch.promote_types(x.dtype, torch.float32)) for x in (queries, gallery))
    origin = gallery[(gallery - gallery.mean(0)).square_().sum(1).argmin()]
    queries, gallery = queries - origin, gallery - origin
    lows_and_highs = torch.stack([*queries.aminmax(), *gallery.aminmax()])
    largest = lows_and_highs.abs().max().item()
    if not math.isfinite(largest):
        raise UserError("the vectors contain NaN or infinite values; leave those rows out")
    scale = 2.0 ** math.frexp(largest)[1]
    return (queries / scale).float(), (gallery / scale).float(), scale


class SquaredDistances:
    """Squared distances of any queries (Q, D) to one gallery (N, D): never negative, (Q, N) in float32.

    Coincident gallery points get equal distances.

    >>> corners = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    >>> SquaredDistances(corners)(corners[:2]).tolist()
    [[0.0, 1.0, 1.0], [1.0, 0.0, 2.0]]
    """

    def __init__(self, gallery: Tensor) -> None:
        gallery = gallery.float()
        # The squared norms ride along as two more coordinates, so that a block is one product.
        self._gallery = torch.cat([gallery, torch.ones_like(gallery[:, :1]), _squared_norms(gallery)], 1)

    def __call__(self, queries: Tensor) -> Tensor:
        return self.rounded(queries).clamp_(min=0)

    def rounded(self, queries: Tensor) -> Tensor:
        """The same, where rounding may leave some slightly below 0: one pass less, for searches that do not mind."""
        queries = queries.float()
        queries = torch.cat([-2 * queries, _squared_norms(queries), torch.ones_like(queries[:, :1])], 1)
        with _full_precision(queries.device.type):
            return torch.mm(queries, self._gallery.T)


def row_blocks(rows: int, columns: int, block_bytes: int = BLOCK_BYTES) -> list[slice]:
    """The rows of a float32 matrix in slices of at most ``block_bytes``, or one row.

    >>> row_blocks(5, 100, block_bytes=800)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    step = max(1, block_bytes // (4 * max(1, columns)))
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def _squared_norms(x: Tensor) -> Tensor:
    return x.square().sum(1, keepdim=True)


@contextmanager
def _full_precision(device: str) -> Iterator[None]:
    """Undoes what training may have set to be fast: autocast, and float32 products in TF32 or bfloat16."""
    with torch.autocast(device, enabled=False):
        try:
            before = [torch.get_float32_matmul_precision()]
            choose = [torch.set_float32_matmul_precision]
            exact = "highest"
        except RuntimeError:  # it was set through torch.backends; newer torch then refuses to answer here
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
