"""The VehicleID protocol: repeatedly, one random image of each class is the gallery, and all others are queries.

Liu et al.: Deep Relative Distance Learning: Tell the Difference Between Similar Vehicles, 2016. With a single positive
per query, Recall@K is the cumulative match curve (CMC) at K, and mAP is the mean reciprocal rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from nearkin.errors import UserError
from nearkin.evaluation.metrics import variant
from nearkin.evaluation.retrieval import retrieve
from nearkin.progress import track
from nearkin.space import Space

RANDOM_GALLERY = variant(
    "random_gallery_", "random galleries", "the gallery is one random item of each class, and all others are queries"
)


def random_gallery_scores(
    space: Space, recall_at: int | Sequence[int] = (1, 5), repeats: int = 10, seed: int = 0
) -> dict[str, float]:
    """Computes means of ``recall@K`` and ``map`` over random galleries, and their standard deviations ``…_sd``.

    Args:
        space: embeddings with labels; its own queries and gallery are ignored.
        recall_at: one or several values of K for Recall@K.
        repeats: number of galleries. Standard deviations are population standard deviations, 0 for one gallery.
        seed: random seed.

    >>> two_pairs = Space.of([[0.0], [1.0], [5.0], [6.0]], [0, 0, 1, 1])
    >>> random_gallery_scores(two_pairs, recall_at=[1])
    {'recall@1': 1.0, 'map': 1.0, 'recall@1_sd': 0.0, 'map_sd': 0.0}
    """
    if repeats < 1:
        raise UserError(f"repeats must be an integer >= 1, got {repeats}")
    splits = track(random_galleries(space, repeats, seed), "random galleries", repeats)
    found = [retrieve(split, kept_neighbours=0, recall_at=recall_at).scores for split in splits]
    names = [name for name in found[0] if name.startswith("recall@") or name == "map"]
    columns = {name: np.array([scores[name] for scores in found]) for name in names}
    means = {name: float(column.mean()) for name, column in columns.items()}
    return means | {f"{name}_sd": float(column.std()) for name, column in columns.items()}


def random_galleries(space: Space, repeats: int, seed: int = 0) -> Iterator[Space]:
    """Yields the space repeatedly, each time with one random item of each class as gallery and the others as queries.

    The only item of a class is always in the gallery, as a distractor, and never a query.

    >>> (split,) = random_galleries(Space.of(torch.eye(3), [0, 1, 0]), repeats=1)
    >>> len(split.gallery), len(split.queries), 1 in split.gallery
    (2, 1, True)
    """
    rng = np.random.default_rng(seed)
    labels = space.labels.cpu().numpy()
    for _ in range(repeats):
        shuffled = rng.permutation(len(labels))
        first_of_class = np.unique(labels[shuffled], return_index=True)[1]
        is_gallery = torch.zeros(len(labels), dtype=torch.bool)
        is_gallery[shuffled[first_of_class]] = True
        is_gallery = is_gallery.to(space.embeddings.device)
        yield replace(space, is_query=~is_gallery, is_gallery=is_gallery)


def cmc(first: Tensor, up_to: int) -> Tensor:
    """Cumulative match curve, (up_to,) float64: at K − 1, the share of queries with a positive among the K nearest.

    Args:
        first: (Q,) ``Retrieval.first_rank``; queries without a positive (0) are excluded.
        up_to: the largest K.

    >>> cmc(torch.tensor([1, 3, 0, 1, 2]), up_to=4).tolist()
    [0.5, 0.75, 1.0, 1.0]
    """
    ranks = first[first > 0]
    return torch.bincount(ranks, minlength=up_to + 1)[1 : up_to + 1].cumsum(0).double() / len(ranks)
