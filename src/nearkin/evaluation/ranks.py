"""Retrieval scores, each computed from the ranks of a query's positives.

A positive is a gallery item of the query's class, other than the query itself. R is the number of positives. The
nearest gallery item has rank 1.

Recall@K: Jégou et al., "Product Quantization for Nearest Neighbor Search" (TPAMI 2011), in the form used by
metric-learning papers. R-precision and MAP@R: Musgrave et al., "A Metric Learning Reality Check" (ECCV 2020).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from nearkin.evaluation.metrics import metric


@dataclass(frozen=True, eq=False)
class PositiveRanks:
    """The ranks of all positives of Q queries, concatenated; ascending within each query.

    Attributes:
        ranks: (P,) integers from 1.
        query: (P,) the query of each positive, 0 … Q − 1, ascending.
        positives: (Q,) R of each query; their sum is P.

    >>> ranks = PositiveRanks.of([[1, 3], [], [2]])
    >>> ranks.ranks.tolist(), ranks.query.tolist(), ranks.positives.tolist()
    ([1, 3, 2], [0, 0, 2], [2, 0, 1])
    """

    ranks: Tensor
    query: Tensor
    positives: Tensor

    @classmethod
    def of(cls, ranks: list[list[int]]) -> PositiveRanks:
        """Makes the ranks from one ascending list per query."""
        positives = torch.tensor([len(row) for row in ranks])
        flat = torch.tensor([rank for row in ranks for rank in row], dtype=torch.long)
        return cls(flat, torch.repeat_interleave(positives), positives)

    @cached_property
    def place(self) -> Tensor:
        """(P,) 1, 2, …, R within each query: the number of positives up to and including this one."""
        before = self.positives.cumsum(0) - self.positives
        return torch.arange(1, len(self.ranks) + 1, device=self.ranks.device) - before[self.query]

    @property
    def precision(self) -> Tensor:
        """(P,) precision at each positive: the share of positives among the items up to its rank."""
        return self.place.double() / self.ranks

    @cached_property
    def first(self) -> Tensor:
        """(Q,) the rank of the nearest positive; 0 if there is none.

        >>> PositiveRanks.of([[1, 3], [], [2]]).first.tolist()
        [1, 0, 2]
        """
        first = torch.zeros_like(self.positives)
        first[self.positives > 0] = self.ranks[self.place == 1]
        return first

    @property
    def within_r(self) -> Tensor:
        """(P,) whether the positive is among the R nearest."""
        return self.ranks <= self.positives[self.query]

    def mean(self, values: Tensor) -> Tensor:
        """(Q,) the mean of values (P,) over the positives of each query; NaN if it has none."""
        sums = torch.zeros(len(self.positives), dtype=torch.float64, device=values.device)
        return sums.index_add_(0, self.query, values.double()) / self.positives


@metric(
    "recall@{k}",
    "Recall@{k}",
    "share of queries with an item of their class among the {k} nearest",
    higher_is_better=True,
    needs="first rank",
)
def recall_at(first: Tensor, k: int) -> Tensor:
    """(Q,) Recall@K: whether a positive is among the K nearest gallery items; ``first`` (Q,) is the lowest rank.

    >>> recall_at(torch.tensor([1, 2, 5]), k=2).tolist()
    [True, True, False]
    """
    return first <= k


@metric(
    "r_precision",
    "R-precision",
    "share of a query's R nearest items that have its class, where R is the number of other items of that class",
    higher_is_better=True,
    needs="ranks",
)
def r_precision(ranks: PositiveRanks) -> Tensor:
    """(Q,) the share of positives among the R nearest gallery items; NaN for a query without positives.

    >>> r_precision(PositiveRanks.of([[1, 3], [2, 4, 5], [2]])).tolist()
    [0.5, 0.3333333333333333, 0.0]
    """
    return ranks.mean(ranks.within_r)


@metric(
    "map@r",
    "MAP@R",
    "like R-precision, but nearer items count more: precisions at correct items up to rank R, summed and divided by R",
    higher_is_better=True,
    needs="ranks",
)
def average_precision_at_r(ranks: PositiveRanks) -> Tensor:
    """(Q,) 1/R Σ_{i ≤ R} P(i)·rel(i), where P(i) is the precision at i; its mean over queries is MAP@R.

    NaN for a query without positives.

    >>> average_precision_at_r(PositiveRanks.of([[1, 3], [1, 2, 5, 6], [2]])).tolist()
    [0.5, 0.5, 0.0]
    """
    return ranks.mean(ranks.precision * ranks.within_r)


@metric(
    "map",
    "mAP",
    "mean average precision over the whole ranking",
    higher_is_better=True,
    needs="ranks",
)
def average_precision(ranks: PositiveRanks) -> Tensor:
    """(Q,) the mean precision at all R positives of the full ranking; its mean over queries is mAP.

    NaN for a query without positives.

    >>> average_precision(PositiveRanks.of([[1, 4], [2]])).tolist()
    [0.75, 0.5]
    """
    return ranks.mean(ranks.precision)
