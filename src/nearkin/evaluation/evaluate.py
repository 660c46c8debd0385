"""A space -> its scores, and the neighbours and clusters they were read from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from nearkin.errors import UserError
from nearkin.evaluation.clusters import cluster_scores, find_clusters
from nearkin.evaluation.retrieval import Retrieval, retrieve
from nearkin.space import Space


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What one space is worth.

    Attributes:
        scores: ``recall@K``, ``r_precision``, ``map@r`` and ``map``, means over the queries that have a positive
            in the gallery; ``queries``, how many have; ``queries_without_positives``, how many were left out;
            ``nmi_geometric``, ``nmi_arithmetic``, ``ami``, ``ari`` and ``pairwise_f1`` of a partition of all items.
        retrieval: the same for every single query, and its neighbours.
        clusters: (items,) the cluster of every item; None where clustering was not asked for.
    """

    scores: dict[str, float]
    retrieval: Retrieval
    clusters: Tensor | None

    primary: ClassVar[str] = "map@r"  # the one score to compare and to choose checkpoints by

    @property
    def neighbours(self) -> Tensor:
        """(queries, kept) rows of the space: the nearest gallery items of every query."""
        return self.retrieval.neighbours


def evaluate(
    space: Space,
    recall_at: Sequence[int] = (1, 2, 4, 8),
    seed: int = 0,
    clustering: bool = True,
    kept_neighbours: int = 10,
    partition: str = "kmeans",
) -> Evaluation:
    """Scores a space by retrieval and clustering; neighbours and clusters are computed once.

    Args:
        space: embeddings with labels.
        recall_at: the K of Recall@K.
        seed: decides where k-means starts.
        clustering: whether to look for clusters, by far the longest part for thousands of classes.
        kept_neighbours: how many neighbours of each query to keep.
        partition: how clusters are found, "kmeans" or "spectral"; see `find_clusters`.

    >>> two_pairs = Space.of(torch.tensor([[0.0], [1.0], [5.0], [6.0]]), torch.tensor([0, 0, 1, 1]))
    >>> scores = evaluate(two_pairs, recall_at=[1]).scores
    >>> scores["recall@1"], scores["map@r"], round(scores["nmi_arithmetic"], 6)
    (1.0, 1.0, 1.0)
    """
    check_space(space, recall_at)
    retrieval = retrieve(space, kept_neighbours)
    scores = retrieval.scores(recall_at)
    if not clustering:
        return Evaluation(scores, retrieval, None)
    clusters = find_clusters(space, seed, partition)
    return Evaluation(scores | cluster_scores(clusters, space.labels), retrieval, clusters)


def check_space(space: Space, recall_at: Sequence[int]) -> None:
    """Refuses what cannot be scored."""
    if any(k < 1 for k in recall_at):
        raise UserError(f"recall_at={list(recall_at)} must hold whole numbers from 1")
    broken = int((~space.embeddings.isfinite().all(1)).sum())
    if broken:
        raise UserError(
            f"{broken} of {len(space)} embeddings contain NaN or infinite values; training has probably diverged: "
            "lower the learning rate, or evaluate an earlier checkpoint"
        )
    if len(torch.unique(space.labels)) < 2:
        raise UserError(
            f"the {len(space)} items to evaluate are of one class only; evaluation needs at least two classes"
        )
