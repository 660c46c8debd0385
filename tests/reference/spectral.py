"""DSCL straight from the paper's equations 7–10, with every n × n matrix written out, in float64."""

from __future__ import annotations

import numpy as np


def spectral_clustering_loss(x: np.ndarray, y: np.ndarray, eps: float = 2.0**-52) -> tuple[float, np.ndarray]:
    """The loss and its gradient (Eq. 8); singular values below max(n, d) · eps · the largest are dropped."""
    points = np.asarray(x, dtype=np.float64)
    together = np.zeros((len(y), len(y)))  # C
    for i in range(len(y)):
        for j in range(len(y)):
            if y[i] == y[j]:
                together[i, j] = 1 / np.sum(y == y[i])
    inverse = np.linalg.pinv(points, rcond=max(points.shape) * eps)
    projection = points @ inverse
    loss = len(set(y.tolist())) - np.trace(together @ projection)
    return loss, -2 * (np.eye(len(y)) - projection) @ together @ inverse.T
