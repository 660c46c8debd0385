"""Contrastive loss one pair at a time, in float64: Eq. 4 averaged over the pairs of each kind, or without squares."""

from __future__ import annotations

import math

import numpy as np


def contrastive_loss(x: np.ndarray, y: np.ndarray, margin: float = 1.0, squared: bool = False) -> float:
    x = np.asarray(x, dtype=np.float64)
    alike, unlike = [], []
    for i in range(len(x)):
        for j in range(i):
            distance = math.dist(x[i], x[j])
            if y[i] == y[j]:
                alike.append(distance)
            else:
                unlike.append(max(0.0, margin - distance))
    return _mean(alike, squared) + _mean(unlike, squared)


def _mean(losses: list[float], squared: bool) -> float:
    """Mean over all pairs (Eq. 4), or over those with a loss; 0 without pairs."""
    terms = [loss**2 / 2 for loss in losses] if squared else [loss for loss in losses if loss > 0]
    return sum(terms) / len(terms) if terms else 0.0
