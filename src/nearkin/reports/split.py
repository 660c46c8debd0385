"""An embedded split: scores per class, confusions between classes, and queries to show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nearkin.evaluation import Diagnostics, EvaluationResult
from nearkin.reports.thumbnails import Thumbnails
from nearkin.space import Space

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class EmbeddedSplit:
    """A split of a dataset, embedded by a model. All tensors are on the CPU.

    Attributes:
        name: "train", "validation" or "test".
        dataset: name of the dataset.
        space: one row per item.
        classes: names of the classes; labels of the space are indices into it.
        thumbnails: images of the items; None if they have none.
        result: its scores; None if it cannot be evaluated.
        diagnostics: distances and spectrum.
    """

    name: str
    dataset: str
    space: Space
    classes: Sequence[str]
    thumbnails: Thumbnails | None
    result: EvaluationResult | None
    diagnostics: Diagnostics

    def class_name(self, row: int) -> str:
        return self.classes[int(self.space.labels[row])]


@dataclass(frozen=True)
class ClassScores:
    """One class: its number of items, and mean scores over its queries that have a positive."""

    label: int
    items: int
    recall: float
    map_at_r: float
    r_precision: float


@dataclass(frozen=True)
class Confusion:
    """The queries of one class whose nearest neighbour is of another, with one example as rows of the space."""

    label: int
    other: int
    count: int
    query: int
    neighbour: int


def class_scores(space: Space, result: EvaluationResult) -> list[ClassScores]:
    """Scores of every class with queries that have a positive, lowest MAP@R first.

    >>> import torch
    >>> from nearkin.evaluation import evaluate
    >>> line = Space.of(torch.tensor([[0.0], [1.0], [3.0], [4.0]]), torch.tensor([0, 0, 1, 0]))
    >>> class_scores(line, evaluate(line, clustering=None))
    [ClassScores(label=0, items=3, recall=0.6666666666666666, map_at_r=0.4166666666666667, r_precision=0.5)]
    """
    found = result.retrieval
    scored = (found.positives > 0).numpy()
    labels, classes = np.unique(space.labels[space.queries].numpy()[scored], return_inverse=True)
    columns = (found.first_rank == 1, found.values["map@r"], found.values["r_precision"])
    sums = (np.bincount(classes, column.double().numpy()[scored]) for column in columns)
    means = np.stack([total / np.bincount(classes) for total in sums], axis=1)
    items = np.bincount(space.labels.numpy())[labels]
    rows = [
        ClassScores(int(label), int(size), *map(float, row))
        for label, size, row in zip(labels, items, means, strict=True)
    ]
    return sorted(rows, key=lambda row: (row.map_at_r, row.recall))


def confusions(space: Space, result: EvaluationResult, limit: int = 12) -> list[Confusion]:
    """The most frequent confusions, as ordered pairs of classes."""
    queries, first, wrong = _first_neighbours(space, result)
    labels = space.labels.numpy()
    pairs = [
        (int(labels[query]), int(labels[other])) for query, other in zip(queries[wrong], first[wrong], strict=True)
    ]
    examples = dict(reversed(list(zip(pairs, np.flatnonzero(wrong), strict=True))))  # the first of each pair
    return [
        Confusion(*pair, count, int(queries[examples[pair]]), int(first[examples[pair]]))
        for pair, count in Counter(pairs).most_common(limit)
    ]


def random_queries(result: EvaluationResult, number: int, seed: int = 0) -> Indices:
    """Random queries that have a positive, as positions in ``space.queries``."""
    scored = np.flatnonzero((result.retrieval.positives > 0).numpy())
    return np.random.default_rng(seed).choice(scored, min(number, len(scored)), replace=False)


def worst_queries(space: Space, result: EvaluationResult, number: int) -> Indices:
    """The queries whose first right neighbour has the worst rank, one per class, as positions in ``space.queries``."""
    rank = result.retrieval.first_rank.numpy()
    labels = space.labels[space.queries].numpy()
    order = np.argsort(-rank, kind="stable")
    order = order[rank[order] > 1]
    firsts = np.sort(np.unique(labels[order], return_index=True)[1])
    chosen: Indices = order[firsts[:number]]
    return chosen


def _first_neighbours(space: Space, result: EvaluationResult) -> tuple[Indices, Indices, npt.NDArray[np.bool_]]:
    """Rows of the queries, rows of their nearest neighbours, and whether these are wrong though a positive exists."""
    queries, first = space.queries.numpy(), result.neighbours[:, 0].numpy()
    labels = space.labels.numpy()
    return queries, first, (labels[queries] != labels[first]) & (result.retrieval.positives > 0).numpy()
