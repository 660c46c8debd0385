"""NCA straight from the equation (magnet paper, Eq. 8), one anchor and one pair at a time, in float64."""

from __future__ import annotations

import math

import numpy as np


def nca_loss(x: np.ndarray, y: np.ndarray, scale: float = 1.0) -> float:
    losses = []
    for i in range(len(x)):
        others = [j for j in range(len(x)) if j != i]
        nearness = {j: math.exp(-scale * sum((a - b) ** 2 for a, b in zip(x[i], x[j], strict=True))) for j in others}
        positives = [nearness[j] for j in others if y[j] == y[i]]
        if positives:
            losses.append(-math.log(sum(positives) / sum(nearness.values())))
    return sum(losses) / len(losses) if losses else 0.0
