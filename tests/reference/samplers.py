"""Samplers straight from their definitions, which read all classes, items or clusters for each batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from nearkin.sampling.cluster_losses import SMOOTHING


def items_by_class(labels: np.ndarray) -> list[np.ndarray]:
    return [np.flatnonzero(labels == group) for group in np.unique(labels)]


def group_batches(
    members: Sequence[np.ndarray], batch_size: int, per_class: int, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    queue: list[int] = []
    while True:
        chosen: dict[int, np.ndarray] = {}
        missing = batch_size
        while missing:
            if all(group in chosen for group in queue):
                queue += rng.permutation(len(members)).tolist()
            group = queue.pop(next(i for i, group in enumerate(queue) if group not in chosen))
            items = members[group]
            chosen[group] = rng.choice(items, min(per_class, len(items), missing), replace=False)
            missing -= len(chosen[group])
        yield np.concatenate(list(chosen.values()))


def ratio_batches(
    members: Sequence[np.ndarray], batch_size: int, fewest: int, most: int, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    while True:
        count = int(rng.integers(fewest, most + 1))
        order = rng.permutation(len(members)).tolist()
        chosen, others = order[:count], order[count:]
        while sum(len(members[group]) for group in chosen) < batch_size:
            smallest = min(chosen, key=lambda group: len(members[group]))
            larger = next(group for group in others if len(members[group]) > len(members[smallest]))
            chosen[chosen.index(smallest)] = larger
            others.remove(larger)
        one_each = np.array([rng.choice(members[group]) for group in chosen])
        rest = np.setdiff1d(np.concatenate([members[group] for group in chosen]), one_each)
        yield np.concatenate([one_each, rng.choice(rest, batch_size - count, replace=False)])


def cluster_means(cluster_of: np.ndarray, clusters: int, losses: np.ndarray) -> np.ndarray:
    """(clusters,) the mean known loss of each; NaN where none is known."""
    known = [losses[(cluster_of == cluster) & np.isfinite(losses)] for cluster in range(clusters)]
    return np.array([own.mean() if len(own) else np.nan for own in known])


def seed_probabilities(cluster_of: np.ndarray, clusters: int, losses: np.ndarray) -> np.ndarray:
    """(clusters,) the probability that each cluster is the seed of a batch."""
    means = cluster_means(cluster_of, clusters, losses)
    if np.nansum(means) == 0:
        return np.full(clusters, 1 / clusters)
    average = np.nanmean(means)
    weights = np.where(np.isnan(means), average, means) + SMOOTHING * average
    return weights / weights.sum()


def neighbourhood(seed: int, centroids: np.ndarray, class_of: np.ndarray, clusters_in_batch: int) -> np.ndarray:
    """The seed cluster, followed by its nearest impostors in order of distance."""
    distances = np.square(centroids - centroids[seed]).sum(1)
    impostors = np.flatnonzero(class_of != class_of[seed])
    nearest = impostors[np.argsort(distances[impostors], kind="stable")]
    return np.concatenate([[seed], nearest[: clusters_in_batch - 1]])


def neighbourhood_batch(
    chosen: np.ndarray, cluster_of: np.ndarray, batch_size: int, rng: np.random.Generator
) -> np.ndarray:
    shares = np.diff(np.linspace(0, batch_size, len(chosen) + 1).round().astype(int))
    drawn = [
        np.resize(rng.permutation(np.flatnonzero(cluster_of == cluster)), share)
        for cluster, share in zip(chosen, shares, strict=True)
    ]
    return np.concatenate(drawn)
