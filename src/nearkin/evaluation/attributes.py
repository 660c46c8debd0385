"""Attribute concentration: the share of an item's neighbours with the same attributes, which training did not use.

Rippel, Paluri, Dollár, Bourdev: Metric Learning with Adaptive Density Discrimination, ICLR 2016, 4.2 and Fig. 6d.
The chance level, which the paper does not give, is computed too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearkin.clustering import nearest_neighbours
from nearkin.clustering.distances import row_blocks
from nearkin.errors import UserError
from nearkin.progress import track
from nearkin.space import Space

HAS_NONE = -1


@dataclass(frozen=True, eq=False)
class AttributeConcentration:
    """Shares of neighbours with the same attribute, for A attributes, or for A values of one attribute in sorted order.

    Attributes:
        sizes: the neighbourhood sizes, ascending.
        items: (A,) the number of queries with the attribute.
        shares: (A, sizes) float64, the mean share of their nearest gallery items that also have it.
        chances: (A,) float64, the mean share of the whole gallery, without the query, that also has it.

    ``shares`` and ``chances`` are NaN for an attribute that no query has; the means ignore it.
    """

    sizes: tuple[int, ...]
    items: Tensor
    shares: Tensor
    chances: Tensor

    @property
    def means(self) -> dict[int, float]:
        """The share for each size, averaged over all pairs of an item and one of its attributes."""
        return dict(zip(self.sizes, self._mean(self.shares.T).tolist(), strict=True))

    @property
    def chance(self) -> float:
        """The expected value of ``means`` for random neighbours."""
        return self._mean(self.chances).item()

    def _mean(self, values: Tensor) -> Tensor:
        return (values.nan_to_num() * self.items).sum(-1) / self.items.sum()


def attribute_concentration(
    space: Space, attributes: Tensor | npt.ArrayLike, sizes: Sequence[int] = (1, 2, 4, 8, 16, 32, 64)
) -> AttributeConcentration:
    """For each item and each of its attributes, the share of the item's n nearest neighbours that also have it.

    All sizes and attributes share one neighbour search, in blocks of queries. An item is never its own neighbour.

    Args:
        space: its queries search its gallery; labels are not used.
        attributes: (items, A) booleans, which attributes each item has; (items,) booleans for a single attribute; or
            (items,) labels, integers or strings, where each distinct value is an attribute.
        sizes: the values of n, from 1 to the size of the gallery (minus 1 if a query is part of it).

    >>> line = Space.of([[0.0], [1.0], [3.0], [7.0]], [0, 0, 1, 1])
    >>> striped = attribute_concentration(line, [True, True, False, True], sizes=[1, 2])
    >>> {n: round(share, 4) for n, share in striped.means.items()}, round(striped.chance, 4)
    ({1: 0.6667, 2: 0.5}, 0.6667)
    """
    columns, count = _columns(attributes, len(space))
    return shares_among_neighbours(space, columns, count, sizes)


def shares_among_neighbours(space: Space, columns: Tensor, count: int, sizes: Sequence[int]) -> AttributeConcentration:
    """Like `attribute_concentration`, for ``count`` numbered attributes.

    ``columns`` is (columns, items): the number of each item's attribute, or HAS_NONE.
    """
    device = space.embeddings.device
    columns, sizes = columns.to(device), tuple(sorted(set(sizes)))
    queries, gallery, own = space.queries, space.gallery, space.own_gallery_rows
    _check(sizes, columns[:, queries], len(gallery) - int((own >= 0).any()))

    searched = space.embeddings[gallery]
    ends = torch.tensor(sizes, device=device)
    hits = torch.zeros(count, len(sizes), dtype=torch.long, device=device)  # integers: exact in any order of summation
    for block in track(row_blocks(len(queries), sizes[-1]), "attributes of neighbours"):
        rows = nearest_neighbours(space.embeddings[queries[block]], searched, sizes[-1], own[block])[1]
        neighbours = gallery[rows]
        for column in columns:
            attribute = column[queries[block]]
            has = attribute != HAS_NONE
            same = column[neighbours[has]] == attribute[has, None]
            hits.index_add_(0, attribute[has], same.cumsum(1)[:, ends - 1])
    items, in_gallery = _count(columns[:, queries], count), _count(columns[:, queries[own >= 0]], count)
    total = _count(columns[:, gallery], count).double()
    chances = in_gallery * (total - 1) / max(1, len(gallery) - 1) + (items - in_gallery) * total / len(gallery)
    shares = hits.double() / (items[:, None] * ends)
    return AttributeConcentration(sizes, items.cpu(), shares.cpu(), (chances / items).cpu())


def _columns(attributes: Tensor | npt.ArrayLike, items: int) -> tuple[Tensor, int]:
    """(columns, items) the number of each item's attribute, or HAS_NONE; and the number of attributes."""
    known = attributes.cpu().numpy() if isinstance(attributes, Tensor) else np.asarray(attributes)
    if known.shape[:1] != (items,) or known.ndim > 2 or (known.ndim == 2 and known.dtype != np.bool_):
        raise UserError(
            f"attributes must be booleans of shape ({items}, attributes) or labels of shape ({items},), "
            f"got {known.dtype} of shape {known.shape}"
        )
    if known.dtype == np.bool_:
        table = known.reshape(items, -1).T
        return torch.from_numpy(np.where(table, np.arange(len(table))[:, None], HAS_NONE)), len(table)
    values, numbers = np.unique(known, return_inverse=True)
    return torch.from_numpy(numbers)[None], len(values)


def _count(columns: Tensor, count: int) -> Tensor:
    """(attributes,) the number of items in the columns that have each attribute."""
    return torch.bincount(columns[columns != HAS_NONE], minlength=count)


def _check(sizes: tuple[int, ...], columns: Tensor, available: int) -> None:
    if not sizes or sizes[0] < 1 or sizes[-1] > available:
        raise UserError(f"sizes must be integers from 1 to {available}, the number of neighbours, got {list(sizes)}")
    if not bool((columns != HAS_NONE).any()):
        raise UserError("no query has any of the attributes; check the attributes")
