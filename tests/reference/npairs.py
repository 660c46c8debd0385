"""N-pairs loss straight from Eq. 3, one positive pair at a time, in float64; the regulariser with squared lengths."""

from __future__ import annotations

import math

import numpy as np


def n_pairs_loss(x: np.ndarray, y: np.ndarray, regularization: float = 0.002) -> float:
    x = np.asarray(x, dtype=np.float64)
    m = len(x)
    losses = []
    for i in range(m):
        negatives = [math.exp(x[i] @ x[k]) for k in range(m) if y[k] != y[i]]
        for j in range(m):
            if j != i and y[j] == y[i] and negatives:
                positive = math.exp(x[i] @ x[j])
                losses.append(-math.log(positive / (positive + sum(negatives))))
    if not losses:
        return 0.0
    return float(np.mean(losses) + regularization / 2 * np.mean([row @ row for row in x]))
