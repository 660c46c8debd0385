"""Magnet straight from the paper's equations 4 and 5, one example and one cluster at a time, in float64."""

from __future__ import annotations

import math

import numpy as np


def squared_distance(a: np.ndarray, b: np.ndarray) -> float:
    return sum((u - v) ** 2 for u, v in zip(a, b, strict=True))


def magnet_losses(
    x: np.ndarray,
    y: np.ndarray,
    clusters: np.ndarray,
    alpha: float = 1.0,
    variance: str = "eq4",
    hinge: str = "hard",
    scaling: float = 1.0,
    index: dict[int, tuple[np.ndarray, int]] | None = None,
) -> list[float]:
    """The loss of each example; ``index``: the centroid and the class of every cluster."""
    means = {c: x[clusters == c].mean(axis=0) for c in set(clusters.tolist())}
    class_of = dict(zip(clusters.tolist(), y.tolist(), strict=True))
    own = [squared_distance(x[i], means[clusters[i]]) for i in range(len(x))]
    spread = sum(own) / (len(x) - 1)
    if variance == "eq5":
        spread = spread**2
    if variance == "none":
        spread = 1.0
    spread = spread / scaling
    losses = []
    for i in range(len(x)):
        impostors = [squared_distance(x[i], means[c]) for c in means if class_of[c] != y[i]]
        for c, (centroid, label) in (index or {}).items():
            if c not in means and label != y[i]:
                impostors.append(squared_distance(x[i], centroid))
        if not impostors:
            losses.append(0.0)
            continue
        near = min(impostors)  # factored out of the sum, which would underflow
        log_sum = -near / (2 * spread) + math.log(sum(math.exp((near - d) / (2 * spread)) for d in impostors))
        overlap = own[i] / (2 * spread) + alpha + log_sum
        losses.append(max(0.0, overlap) if hinge == "hard" else math.log1p(math.exp(overlap)))
    return losses
