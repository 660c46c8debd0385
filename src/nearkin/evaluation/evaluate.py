"""A space -> its scores, and the neighbours and clusters they were read from."""

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
    """Scores embeddings by retrieval and clustering; neighbours and clusters are computed once.

    Args:
        embeddings: (items, dim), or a space, which has labels and masks of its own.
        labels: (items,) numbers or words.
        is_query, is_gallery: (items,) booleans: what searches, and what is searched; None: everything.
        recall_at: the K of Recall@K, one or several.
        clustering: how clusters are found, "kmeans" or "spectral" (see `find_clusters`); None for no clusters, which
            take by far the longest for thousands of classes.
        protocol: "random-gallery" adds the scores of random galleries, as `random_gallery_scores` gives them.
        kept_neighbours: how many neighbours of each query to keep.
        seed: decides where k-means starts.

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
            f"the {len(space)} items to evaluate are of one class only; evaluation needs at least two classes"
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
    """What `evaluate` takes, as a space."""
    if not isinstance(embeddings, Space):
        if labels is None:
            raise UserError("embeddings cannot be evaluated without labels; call evaluate(embeddings, labels)")
        return Space.of(embeddings, labels, is_query, is_gallery)
    if any(given is not None for given in (labels, is_query, is_gallery)):
        raise UserError("a space has labels and masks of its own; give them to Space.of, not to evaluate")
    return embeddings
