"""Evaluates a space: computes its scores, neighbours and clusters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy.typing as npt
import torch
from torch import Tensor

from nearkin.errors import UserError, unknown_name
from nearkin.evaluation.clusters import CLUSTERINGS, cluster_scores, find_clusters
from nearkin.evaluation.galleries import RANDOM_GALLERY, random_gallery_scores
from nearkin.evaluation.metrics import known_metrics
from nearkin.evaluation.result import EvaluationResult
from nearkin.evaluation.retrieval import check_finite, retrieve
from nearkin.space import Space

PROTOCOLS = ("", "random-gallery")


def evaluate(
    embeddings: Space | Tensor | npt.ArrayLike,
    labels: Tensor | npt.ArrayLike | None = None,
    *,
    is_query: Tensor | npt.ArrayLike | None = None,
    is_gallery: Tensor | npt.ArrayLike | None = None,
    recall_at: int | Sequence[int] = (1, 2, 4, 8),
    clustering: str | None = "kmeans",
    protocol: str = "",
    kept_neighbours: int = 10,
    seed: int = 0,
) -> EvaluationResult:
    """Computes retrieval and clustering scores of embeddings.

    Args:
        embeddings: (items, dim), or a space, which has its own labels and masks.
        labels: (items,) numbers or strings.
        is_query: (items,) booleans, which items are queries; None means all.
        is_gallery: (items,) booleans, which items are in the gallery; None means all.
        recall_at: one or several values of K for Recall@K.
        clustering: "kmeans" or "spectral" (see `find_clusters`). None skips clustering, which takes most of the time if
            there are thousands of classes.
        protocol: "random-gallery" adds the scores of `random_gallery_scores`.
        kept_neighbours: number of neighbours to keep for each query.
        seed: random seed of k-means.

    >>> result = evaluate([[0.0], [1.0], [5.0], [6.0]], ["a", "a", "b", "b"], recall_at=1)
    >>> result.scores["recall@1"], result.scores["map@r"], round(result.scores["nmi_arithmetic"], 6)
    (1.0, 1.0, 1.0)
    """
    space = as_space(embeddings, labels, is_query, is_gallery)
    if clustering is not None and clustering not in CLUSTERINGS:
        raise unknown_name("clustering", str(clustering), CLUSTERINGS)
    if protocol not in PROTOCOLS:
        raise unknown_name("protocol", protocol, PROTOCOLS)
    check_finite(space)
    if len(torch.unique(space.labels)) < 2:
        raise UserError(
            f"all {len(space)} items to evaluate have the same class; evaluation needs at least two classes"
        )
    retrieval = retrieve(space, kept_neighbours, recall_at)
    scores, clusters = retrieval.scores, None
    if clustering is not None:
        clusters = find_clusters(space, seed, clustering)
        scores |= cluster_scores(clusters, space.labels)
    if protocol == "random-gallery":
        galleries = random_gallery_scores(space, recall_at)
        scores |= {RANDOM_GALLERY + name: score for name, score in galleries.items()}
    scores |= {each.name: float(each.compute(space)) for each in known_metrics("space")}
    return EvaluationResult(scores, retrieval, clusters)


def as_space(
    embeddings: Space | Tensor | npt.ArrayLike,
    labels: Tensor | npt.ArrayLike | None,
    is_query: Tensor | npt.ArrayLike | None,
    is_gallery: Tensor | npt.ArrayLike | None,
) -> Space:
    """Makes a space from the arguments of `evaluate`."""
    if not isinstance(embeddings, Space):
        if labels is None:
            raise UserError("embeddings cannot be evaluated without labels; call evaluate(embeddings, labels)")
        return Space.of(embeddings, labels, is_query, is_gallery)
    if any(given is not None for given in (labels, is_query, is_gallery)):
        raise UserError("a space has its own labels and masks; pass them to Space.of, not to evaluate")
    return embeddings
