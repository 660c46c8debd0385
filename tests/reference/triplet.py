"""Semi-hard triplet loss straight from its definition, one positive pair at a time, in float64."""

from __future__ import annotations

import numpy as np


def triplet_semi_hard_loss(x: np.ndarray, y: np.ndarray, margin: float = 0.2) -> float:
    x = np.asarray(x, dtype=np.float64)
    losses = []
    for i in range(len(x)):
        negatives = [((x[i] - x[k]) ** 2).sum() for k in range(len(x)) if y[k] != y[i]]
        for j in range(len(x)):
            if j != i and y[j] == y[i] and negatives:
                to_positive = ((x[i] - x[j]) ** 2).sum()
                farther = [to_negative for to_negative in negatives if to_negative > to_positive]
                losses.append(max(0.0, to_positive + margin - (min(farther) if farther else max(negatives))))
    return float(np.mean(losses)) if losses else 0.0
