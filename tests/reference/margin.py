"""Margin loss and distance-weighted probabilities straight from Wu et al., one term at a time, in float64."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np


def margin_loss(
    x: np.ndarray, triplets: Iterable[tuple[int, int, int]], beta: np.ndarray, margin: float = 0.2, nu: float = 0.0
) -> float:
    """The loss, with one β per item of the batch."""
    x = np.asarray(x, dtype=np.float64)
    total, active = 0.0, 0
    for a, p, n in triplets:
        to_positive = math.sqrt(((x[a] - x[p]) ** 2).sum() + 1e-8)
        to_negative = math.sqrt(((x[a] - x[n]) ** 2).sum() + 1e-8)
        for violation in (to_positive - beta[a] + margin, beta[a] - to_negative + margin):
            total += max(0.0, violation)
            active += violation > 0
        total += nu * beta[a]
    return total / active if active else 0.0


def negative_probabilities(x: np.ndarray, y: np.ndarray, cutoff: float = 0.5) -> np.ndarray:
    """P(negative | anchor) for points of unit length; a row without negatives is 0."""
    x = np.asarray(x, dtype=np.float64)
    m, n = x.shape
    weights = np.zeros((m, m))
    for i in range(m):
        for j in range(m):
            if y[i] != y[j]:
                distance = max(cutoff, math.dist(x[i], x[j]))
                weights[i, j] = 1 / (distance ** (n - 2) * (1 - distance**2 / 4) ** ((n - 3) / 2))
        weights[i] /= weights[i].sum() or 1.0
    return weights
