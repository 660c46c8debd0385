"""Contrastive loss straight from Eq. 4, one pair at a time, in float64; each kind averaged over its own pairs."""

from __future__ import annotations

import math

import numpy as np


def contrastive_loss(x: np.ndarray, y: np.ndarray, margin: float = 1.0) -> float:
    x = np.asarray(x, dtype=np.float64)
    alike, unlike = [0.0], [0.0]  # a kind without pairs adds 0
    for i in range(len(x)):
        for j in range(i):
            distance = math.dist(x[i], x[j])
            if y[i] == y[j]:
                alike.append(distance**2 / 2)
            else:
                unlike.append(max(0.0, margin - distance) ** 2 / 2)
    return sum(alike) / max(1, len(alike) - 1) + sum(unlike) / max(1, len(unlike) - 1)
