"""Compiled parts of the facility-location loss: distances, computed before the search, and the gradient, after it."""

from __future__ import annotations

import numpy as np
from numba import njit

from nearkin.clustering._compiled import compiled
from nearkin.clustering.facilities import Indices, Matrix


@compiled
def points_and_distances(vectors: Matrix, normalize: bool, single: bool) -> tuple[Matrix, Matrix, Matrix]:
    """Returns the points (m, dim), normalised on request, the vectors' lengths (m,), and the distances (m, m).

    With ``single``, distances are rounded to single precision, so that they do not depend on the order of summation.
    """
    m = len(vectors)
    points, lengths, distances = vectors.copy(), np.ones(m), np.zeros((m, m))
    if normalize:
        origin = np.zeros(vectors.shape[1])
        for i in range(m):
            length = _distance(vectors[i], origin)
            lengths[i] = length if length > 0 else np.inf  # a zero vector stays zero and gets no gradient
            points[i] /= lengths[i]
    for i in range(m):
        for j in range(i):
            distance = _distance(points[i], points[j])
            distances[i, j] = distances[j, i] = np.float64(np.float32(distance)) if single else distance
    return points, lengths, distances


@compiled
def vector_gradient(points: Matrix, lengths: Matrix, normalize: bool, medoids: Indices, nearest: Indices) -> Matrix:
    """The gradient of Σ |p − its medoid| − Σ |p − its facility| with respect to the vectors, (m, dim); Eq. 12, 13."""
    gradient = np.zeros_like(points)
    for targets, sign in ((medoids, 1.0), (nearest, -1.0)):
        for i in range(len(points)):
            target = targets[i]
            distance = _distance(points[i], points[target])
            if distance > 0:
                for c in range(points.shape[1]):
                    direction = sign * (points[i, c] - points[target, c]) / distance
                    gradient[i, c] += direction
                    gradient[target, c] -= direction
    if normalize:
        for i in range(len(points)):
            radial = (gradient[i] * points[i]).sum()
            gradient[i] = (gradient[i] - radial * points[i]) / lengths[i]
    return gradient


@njit(fastmath=True)
def _distance(a: Matrix, b: Matrix) -> float:
    total = 0.0
    for c in range(len(a)):
        total += (a[c] - b[c]) ** 2
    return np.sqrt(total)  # type: ignore[no-any-return]
