"""Retrieval: the ranks of each query's positives, in one pass over blocks of the distance matrix.

Memory is limited to a few blocks of 32 MB (128 MB on CUDA), whatever the size of the space. Ranks are exact: they are
based on distances by subtraction in float64, and the lowest gallery row wins ties. `clustering.distances` explains why
this is almost as fast as float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from nearkin.clustering.distances import Distances, block_bytes_on, row_blocks
from nearkin.clustering.groups import GroupMembers
from nearkin.errors import UserError
from nearkin.evaluation.metrics import Metric, known_metrics, metric
from nearkin.evaluation.ranking import rank
from nearkin.evaluation.ranks import PositiveRanks
from nearkin.progress import track
from nearkin.space import Space


@dataclass(frozen=True, eq=False)
class Retrieval:
    """The retrieval results of all queries, in the order of ``space.queries``.

    Attributes:
        positives: (Q,) the number of gallery items of the query's class, without the query itself.
        first_rank: (Q,) the rank of the nearest positive; 0 if there is none.
        values: (Q,) float64 values of each metric of ranks, such as "map@r"; NaN if a query has no positive.
        neighbours: (Q, kept) rows of the space: the nearest gallery items, nearest first.
        recall_at: the values of K for Recall@K.
    """

    positives: Tensor
    first_rank: Tensor
    values: dict[str, Tensor]
    neighbours: Tensor
    recall_at: tuple[int, ...] = (1, 2, 4, 8)

    def columns(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the name of each score and its float64 values for the queries that have a positive."""
        found = self.positives > 0
        first = self.first_rank[found]
        for family in known_metrics("first rank"):
            for each in map(family.at, self.recall_at):  # computed on demand: there may be a thousand values of K
                yield each.name, _per_query(each, first, len(first))
        for name, values in self.values.items():
            yield name, values[found]

    @property
    def scores(self) -> dict[str, float]:
        """Means over the queries that have a positive, and the numbers of queries with and without a positive."""
        means = {name: values.mean().item() for name, values in self.columns()}
        return means | {each.name: float(each.compute(self)) for each in known_metrics("retrieval")}

    def to(self, device: torch.device | str) -> Retrieval:
        """The same on another device."""
        positives, first_rank, neighbours = (
            column.to(device) for column in (self.positives, self.first_rank, self.neighbours)
        )
        values = {name: column.to(device) for name, column in self.values.items()}
        return Retrieval(positives, first_rank, values, neighbours, self.recall_at)


@metric(
    "queries",
    "Queries",
    "number of queries that have another item of their class in the gallery",
    higher_is_better=None,
    needs="retrieval",
    decimals=0,
)
def queries(found: Retrieval) -> int:
    return int((found.positives > 0).sum())


@metric(
    "queries_without_positives",
    "Queries without a positive",
    "number of queries that have no other item of their class in the gallery; excluded from the means",
    higher_is_better=None,
    needs="retrieval",
    decimals=0,
)
def queries_without_positives(found: Retrieval) -> int:
    return int((found.positives == 0).sum())


def retrieve(
    space: Space,
    kept_neighbours: int = 10,
    recall_at: int | Sequence[int] = (1, 2, 4, 8),
    block_bytes: int | None = None,
) -> Retrieval:
    """Ranks the gallery for each query of a space; an item is never its own neighbour.

    Args:
        space: embeddings with labels; its queries search its gallery.
        kept_neighbours: number of nearest gallery items to keep per query; fewer if the gallery is smaller.
        recall_at: one or several values of K for Recall@K.
        block_bytes: size of a block of distances in memory; None chooses a size for the device.

    >>> line = Space.of(torch.tensor([[0.0], [1.0], [3.0], [4.0]]), torch.tensor([0, 0, 1, 0]))
    >>> found = retrieve(line, kept_neighbours=2)
    >>> found.first_rank.tolist(), found.neighbours.tolist()
    ([1, 1, 0, 2], [[1, 2], [0, 2], [3, 1], [2, 1]])
    """
    given: Any = recall_at
    at = tuple(given if isinstance(given, Iterable) and not isinstance(given, str) else [given])
    if any(not isinstance(k, Integral) or int(k) < 1 for k in at):
        raise UserError(f"recall_at must be integers >= 1, such as [1, 2, 4, 8], got {list(at)}")
    check_finite(space)
    device = space.embeddings.device
    queries, gallery, own = space.queries, space.gallery, space.own_gallery_rows
    positives = _Positives(space.labels.to(device), queries, gallery, own)
    if not bool(positives.counts.any()):
        raise UserError(
            "no query has another item of its class in the gallery; "
            "check the labels and the split into queries and gallery"
        )
    kept = max(0, min(kept_neighbours, len(gallery) - int((own >= 0).any())))
    to_gallery = Distances(space.embeddings[gallery])
    metrics = known_metrics("ranks")
    blocks = []
    for rows in track(row_blocks(len(queries), len(gallery), block_bytes or block_bytes_on(device)), "ranking"):
        block = to_gallery.block(space.embeddings[queries[rows]])
        block.exclude(own[rows])
        query, column = positives.pairs(rows)
        ranks, nearest = rank(block, query, column, kept)
        found = PositiveRanks(ranks, query, positives.counts[rows])
        values = [_per_query(each, found, len(found.positives)) for each in metrics]
        blocks.append((found.positives, found.first, gallery[nearest], *values))
    counts, first, nearest, *columns = (torch.cat(column) for column in zip(*blocks, strict=True))
    return Retrieval(counts, first, dict(zip((each.name for each in metrics), columns, strict=True)), nearest, at)


def check_finite(space: Space) -> None:
    """Raises if embeddings contain NaN or infinite values."""
    broken = int((~space.embeddings.isfinite().all(1)).sum())
    if broken:
        raise UserError(
            f"{broken} of {len(space)} embeddings contain NaN or infinite values; remove these rows, "
            "or lower the learning rate if training has diverged"
        )


def _per_query(metric: Metric, given: Tensor | PositiveRanks, queries: int) -> Tensor:
    values = metric.compute(given)
    if not isinstance(values, Tensor) or values.shape != (queries,):
        found = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
        raise UserError(f"metric '{metric.name}' returned {found}; return a tensor with one value per query")
    return values.double()


class _Positives:
    """Finds the positives of queries: gallery rows of the same class, without the query itself."""

    def __init__(self, labels: Tensor, queries: Tensor, gallery: Tensor, own: Tensor) -> None:
        self._members = GroupMembers(labels[queries], labels[gallery])
        self._own = own
        self.counts = self._members.sizes - (own >= 0).long()  # (Q,)

    def pairs(self, rows: slice) -> tuple[Tensor, Tensor]:
        """For each positive, the number of its query within ``rows``, (P,) ascending, and its gallery row, (P,)."""
        query, column = self._members.pairs(rows)
        others = column != self._own[rows][query]
        return query[others], column[others]
