"""Retrieval: the ranks of the positives of every query, in one pass over blocks of the distance matrix.

Memory is bounded by a few blocks of 32 MB, of 128 MB on CUDA, whatever the size of the space. Ranks are exact, ties
included: they follow the distances by subtraction in float64, and of equal ones the lowest gallery row is the nearer
one. `clustering.distances` tells how that takes hardly longer than float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nearkin.clustering.distances import Distances, block_bytes_on, row_blocks
from nearkin.errors import UserError
from nearkin.evaluation.ranking import rank
from nearkin.evaluation.ranks import (
    PositiveRanks,
    average_precision,
    average_precision_at_r,
    first_rank,
    r_precision,
    recalls_at,
)
from nearkin.progress import track
from nearkin.space import Space


@dataclass(frozen=True, eq=False)
class Retrieval:
    """What every query found, in the order of ``space.queries``; the scores are defined in `evaluation.ranks`.

    Attributes:
        positives: (Q,) gallery items of the query's class, itself left out.
        first_rank: (Q,) rank of the nearest positive; 0 where there is none.
        r_precision, average_precision_at_r, average_precision: (Q,) in float64; NaN where there is none.
        neighbours: (Q, kept) rows of the space: the nearest gallery items, nearest first.
    """

    positives: Tensor
    first_rank: Tensor
    r_precision: Tensor
    average_precision_at_r: Tensor
    average_precision: Tensor
    neighbours: Tensor

    def scores(self, recall_ks: Sequence[int] = (1, 2, 4, 8)) -> dict[str, float]:
        """The means over the queries that have a positive, how many these are, and how many were left out."""
        found = self.positives > 0
        return {
            **{
                f"recall@{k}": recall
                for k, recall in zip(recall_ks, recalls_at(self.first_rank, recall_ks), strict=True)
            },
            "r_precision": self.r_precision[found].mean().item(),
            "map@r": self.average_precision_at_r[found].mean().item(),
            "map": self.average_precision[found].mean().item(),
            "queries": float(found.sum()),
            "queries_without_positives": float((~found).sum()),
        }


def retrieve(space: Space, kept_neighbours: int = 10, block_bytes: int | None = None) -> Retrieval:
    """Ranks the gallery for every query of a space; an item is never its own neighbour.

    Args:
        space: embeddings with labels; its queries search its gallery.
        kept_neighbours: how many nearest gallery items to keep per query (fewer where the gallery is smaller).
        block_bytes: size of the block of distances that is held at a time; None for what suits the device.

    >>> line = Space.of(torch.tensor([[0.0], [1.0], [3.0], [4.0]]), torch.tensor([0, 0, 1, 0]))
    >>> found = retrieve(line, kept_neighbours=2)
    >>> found.first_rank.tolist(), found.neighbours.tolist()
    ([1, 1, 0, 2], [[1, 2], [0, 2], [3, 1], [2, 1]])
    """
    device = space.embeddings.device
    queries, gallery, own = space.queries, space.gallery, space.own_gallery_rows
    positives = _Positives(space.labels.to(device), queries, gallery, own)
    if not bool(positives.counts.any()):
        raise UserError(
            "no query has another item of its class in the gallery, so there is nothing to find; "
            "check the labels and the split into queries and gallery"
        )
    kept = max(0, min(kept_neighbours, len(gallery) - int((own >= 0).any())))
    to_gallery = Distances(space.embeddings[gallery])
    parts = []
    for rows in track(row_blocks(len(queries), len(gallery), block_bytes or block_bytes_on(device)), "ranking"):
        block = to_gallery.block(space.embeddings[queries[rows]])
        block.exclude(own[rows])
        query, column = positives.pairs(rows)
        ranks, nearest = rank(block, query, column, kept)
        parts.append((*_query_scores(PositiveRanks(ranks, query, positives.counts[rows])), gallery[nearest]))
    return Retrieval(*(torch.cat(column) for column in zip(*parts, strict=True)))


class _Positives:
    """Which gallery rows are the positives of a query: those of its class, itself left out."""

    def __init__(self, labels: Tensor, queries: Tensor, gallery: Tensor, own: Tensor) -> None:
        classes = torch.unique(labels, return_inverse=True)[1]
        sizes = torch.bincount(classes[gallery], minlength=len(classes))
        self._own = own
        self._members = classes[gallery].sort(stable=True).indices  # gallery rows, class by class
        self._sizes = sizes[classes[queries]]
        self._starts = (sizes.cumsum(0) - sizes)[classes[queries]]
        self.counts = self._sizes - (own >= 0).long()  # (Q,)

    def pairs(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Of each positive, (P,) the number of its query within the rows, ascending, and (P,) its gallery row."""
        sizes, starts = self._sizes[rows], self._starts[rows]
        query = torch.repeat_interleave(sizes)
        within_class = torch.arange(len(query), device=query.device) - (sizes.cumsum(0) - sizes)[query]
        column = self._members[starts[query] + within_class]
        others = column != self._own[rows][query]
        return query[others], column[others]


def _query_scores(found: PositiveRanks) -> tuple[Tensor, ...]:
    return (
        found.positives,
        first_rank(found),
        r_precision(found),
        average_precision_at_r(found),
        average_precision(found),
    )
