"""Confidence intervals of retrieval scores, and paired tests of two spaces.

Intervals are percentile bootstrap intervals: Efron, "Bootstrap Methods: Another Look at the Jackknife" (Annals of
Statistics 1979). The p-value is that of Fisher's sign-flip test, computed as in Phipson and Smyth, "Permutation
P-values Should Never Be Zero" (2010). Queries of the same class are not independent. If there are few or large classes,
resample whole classes instead of queries; with few classes, intervals are still somewhat too narrow.

Only queries are resampled; the gallery stays the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from nearkin.errors import UserError, unknown_name
from nearkin.evaluation.result import EvaluationResult
from nearkin.evaluation.retrieval import Retrieval
from nearkin.space import Space

Over = Literal["queries", "classes"]
Floats = npt.NDArray[np.float64]
Found = EvaluationResult | Retrieval


def confidence_intervals(
    found: Found,
    space: Space,
    level: float = 0.95,
    resamples: int = 1000,
    over: Over = "queries",
    seed: int = 0,
) -> dict[str, tuple[float, float]]:
    """The lower and upper ends of the confidence intervals of all retrieval scores of a space.

    Args:
        found: the result of `evaluate` or `retrieve` for the space.
        space: the space itself, for the classes of its queries.
        level: confidence level.
        resamples: number of bootstrap samples.
        over: what to draw with replacement: single queries, or whole classes of queries.
        seed: random seed.

    >>> from nearkin.evaluation import retrieve
    >>> line = Space.of(torch.tensor([[0.0], [1.0], [3.0], [4.0]]), torch.tensor([0, 0, 1, 0]))
    >>> confidence_intervals(retrieve(line, recall_at=[1, 3]), line)["recall@3"]
    (1.0, 1.0)
    """
    _check_settings(level, resamples, over)
    values = _query_values(found)
    totals = _group_totals(values, _query_classes(found, space), over)
    lows, highs = _bootstrap(totals, level, resamples, np.random.default_rng(seed))
    return dict(zip(values, zip(lows.tolist(), highs.tolist(), strict=True), strict=True))


@dataclass(frozen=True)
class PairedDifference:
    """The difference between the scores of two spaces on the same queries.

    Attributes:
        difference: the second score minus the first.
        low: the lower end of the bootstrap interval of the difference.
        high: its upper end.
        p_value: two-sided; the probability of a difference at least this large if it were random which of the two
            spaces is better for each query (or class).
    """

    difference: float
    low: float
    high: float
    p_value: float


def paired_difference(
    first: Found,
    second: Found,
    first_space: Space,
    second_space: Space,
    level: float = 0.95,
    resamples: int = 1000,
    over: Over = "queries",
    seed: int = 0,
) -> dict[str, PairedDifference]:
    """Compares all retrieval scores of two spaces of the same items, query by query.

    Args:
        first: the result of `evaluate` or `retrieve` for the first space.
        second: the same for the second space.
        first_space: the first space.
        second_space: the second space, with the same queries and gallery in the same order.
        level: confidence level.
        resamples: number of bootstrap samples and of sign flips; no p-value is below 1 / (1 + resamples).
        over: what to draw and flip: single queries, or whole classes of queries.
        seed: random seed.

    >>> from nearkin.evaluation import retrieve
    >>> labels = torch.tensor([0, 1]).repeat(10)
    >>> mixed, parted = Space.of(torch.arange(20.0)[:, None], labels), Space.of(labels[:, None].float(), labels)
    >>> paired_difference(retrieve(mixed), retrieve(parted), mixed, parted)["recall@1"]
    PairedDifference(difference=1.0, low=1.0, high=1.0, p_value=0.000999000999000999)
    """
    _check_settings(level, resamples, over)
    classes = _query_classes(first, first_space)
    _query_classes(second, second_space)
    _check_same_items(first_space, second_space)
    if not torch.equal(_retrieval(first).positives.cpu(), _retrieval(second).positives.cpu()):
        raise UserError("the two retrievals have different positives; pass those computed from the two spaces")
    of_first, of_second = _query_values(first), _query_values(second)
    differences = {name: of_second[name] - of_first[name] for name in of_first}
    totals = _group_totals(differences, classes, over)
    random = np.random.default_rng(seed)
    lows, highs = _bootstrap(totals, level, resamples, random)
    p_values = _sign_flip_p_values(totals[:, :-1], resamples, random)
    means = totals[:, :-1].sum(0) / totals[:, -1].sum()
    rows = np.stack([means, lows, highs, p_values], axis=1).tolist()
    return {name: PairedDifference(*row) for name, row in zip(differences, rows, strict=True)}


def _check_settings(level: float, resamples: int, over: str) -> None:
    if not 0 < level < 1:
        raise UserError(f"level must be > 0 and < 1, such as 0.95, got {level}")
    if resamples < 1:
        raise UserError(f"resamples must be an integer >= 1, such as 1000, got {resamples}")
    if over not in get_args(Over):
        raise unknown_name("over", over, get_args(Over))


def _retrieval(found: Found) -> Retrieval:
    return found.retrieval if isinstance(found, EvaluationResult) else found


def _query_values(found: Found) -> dict[str, Floats]:
    """(Q,) the values of each score, for the queries that have a positive."""
    return {name: values.cpu().numpy() for name, values in _retrieval(found).columns()}


def _query_classes(found: Found, space: Space) -> npt.NDArray[np.int64]:
    """(Q,) the class, 0, 1, …, of each query that has a positive."""
    has_positive, labels = (_retrieval(found).positives > 0).cpu(), space.labels[space.queries].cpu()
    if len(has_positive) != len(labels):
        raise UserError(
            f"the retrieval has {len(has_positive)} queries, but the space has {len(labels)}; "
            "pass the space that the retrieval was computed from"
        )
    return np.unique(labels[has_positive].numpy(), return_inverse=True)[1]


def _check_same_items(first: Space, second: Space) -> None:
    for rows in ("queries", "gallery"):
        for column in ("items", "labels"):
            ours, theirs = (getattr(space, column)[getattr(space, rows)].cpu() for space in (first, second))
            if not torch.equal(ours, theirs):
                raise UserError(
                    f"the two spaces differ in the {column} of their {rows}; "
                    "a paired comparison needs the same items in the same order"
                )


def _group_totals(values: dict[str, Floats], classes: npt.NDArray[np.int64], over: Over) -> Floats:
    """(G, scores + 1) the sum of each score over each unit (a query or a class), and the unit's number of queries."""
    table = np.stack([*values.values(), np.ones(len(classes))], axis=1)
    if over == "classes":
        table = np.stack([np.bincount(classes, column) for column in table.T], axis=1)
    if len(table) < 2:  # the interval would have no width, as if the score were certain
        raise UserError(
            f'over="{over}" needs at least two {over} with positives, got {len(table)}; '
            + ("evaluate more queries" if over == "queries" else 'use over="queries", or evaluate more classes')
        )
    return table


def _bootstrap(totals: Floats, level: float, resamples: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    """The lower and upper ends (scores,) of the intervals of the means over queries."""
    groups = len(totals)
    # One resample at a time: its counts fit into the cache, and memory does not grow with the number of resamples.
    draws = (np.bincount(random.integers(groups, size=groups), minlength=groups) for _ in range(resamples))
    sums = np.stack([times_drawn @ totals for times_drawn in draws])
    lows, highs = np.quantile(sums[:, :-1] / sums[:, -1:], [(1 - level) / 2, (1 + level) / 2], axis=0)
    return lows, highs


def _sign_flip_p_values(sums: Floats, resamples: int, random: np.random.Generator) -> Floats:
    """(scores,) the share of random sign flips for which sums (G, scores) add up to at least their unflipped total."""
    # With few groups, many flips give the same total as no flip; rounding must not make them differ.
    as_large = np.abs(sums.sum(0)) - 1e-12 * np.abs(sums).sum(0)
    flips = (1 - 2 * random.integers(2, size=len(sums)) for _ in range(resamples))
    count = sum((np.abs(signs @ sums) >= as_large).astype(np.float64) for signs in flips)
    return np.asarray((1 + count) / (1 + resamples))
