"""Pairs of items that belong to the same group, without comparing all pairs."""

from __future__ import annotations

import torch
from torch import Tensor


class GroupMembers:
    """The gallery rows that belong to the same group as a query.

    Args:
        queries: (Q,) integers, the groups of the queries.
        gallery: (N,) the groups of the gallery, on the same device.

    Attributes:
        sizes: (Q,) the number of these gallery rows.

    >>> members = GroupMembers(torch.tensor([7, 5, 7]), torch.tensor([5, 7, 6, 7]))
    >>> [each.tolist() for each in members.pairs(slice(1, 3))]
    [[0, 1, 1], [0, 1, 3]]
    """

    def __init__(self, queries: Tensor, gallery: Tensor) -> None:
        in_order, self._members = gallery.sort(stable=True)
        self._starts = torch.searchsorted(in_order, queries)
        self.sizes = torch.searchsorted(in_order, queries, right=True) - self._starts

    def pairs(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Numbers of queries within ``rows``, (P,) ascending, and their gallery rows, (P,) ascending in each query."""
        sizes = self.sizes[rows]
        query = torch.repeat_interleave(sizes)
        place = torch.arange(len(query), device=query.device) - (sizes.cumsum(0) - sizes)[query]
        return query, self._members[self._starts[rows][query] + place]
