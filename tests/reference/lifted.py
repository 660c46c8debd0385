"""Lifted structure loss straight from Eq. 2, one positive pair at a time, in float64."""

from __future__ import annotations

import math

import numpy as np


def lifted_structure_loss(x: np.ndarray, y: np.ndarray, margin: float = 1.0) -> float:
    x = np.asarray(x, dtype=np.float64)
    m = len(x)
    total, pairs = 0.0, 0
    for i in range(m):
        for j in range(i + 1, m):
            if y[i] == y[j]:
                pushes = [math.exp(margin - math.dist(x[i], x[k])) for k in range(m) if y[k] != y[i]]
                pushes += [math.exp(margin - math.dist(x[j], x[k])) for k in range(m) if y[k] != y[j]]
                if pushes:
                    total += max(0.0, math.log(sum(pushes)) + math.dist(x[i], x[j])) ** 2
                pairs += 1
    return total / (2 * pairs) if pairs else 0.0
