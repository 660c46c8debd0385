"""Compiled parts of the facility-location loss: distances, computed before the search, and the gradient, after it."""

from __future__ import annotations

import numpy as np
from numba import njit

from nearkin.clustering._compiled import compiled
from nearkin.clustering.facilities import Indices, Matrix

TILE = 32


@compiled
def unit_points(vectors: Matrix) -> tuple[Matrix, Matrix]:
    """The vectors divided by their lengths, (m, dim), and these lengths, (m,)."""
    points, lengths, origin = vectors.copy(), np.empty(len(vectors)), np.zeros(vectors.shape[1])
    for i in range(len(vectors)):
        length = _distance(vectors[i], origin)
        lengths[i] = length if length > 0 else np.inf  # a zero vector stays zero and gets no gradient
        points[i] /= lengths[i]
    return points, lengths


@compiled
def fill_distances(points: Matrix, distances: Matrix) -> None:
    """Writes the distances between points (m, dim) to a float32 or float64 matrix (m, m)."""
    m = len(points)
    for rows in range(0, m, TILE):  # tile by tile, because writing column by column misses the cache
        for columns in range(0, rows + 1, TILE):
            for i in range(rows, min(rows + TILE, m)):
                distances[i, i] = 0.0
                for j in range(columns, min(columns + TILE, i)):
                    distances[i, j] = distances[j, i] = _distance(points[i], points[j])


@compiled
def point_gradient(points: Matrix, medoids: Indices, nearest: Indices) -> Matrix:
    """The gradient of Σ |p − its medoid| − Σ |p − its facility| with respect to the points, (m, dim); Eq. 12, 13."""
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
    return gradient


@compiled
def vector_gradient(gradient: Matrix, points: Matrix, lengths: Matrix) -> Matrix:
    """The gradient with respect to vectors of these lengths, (m, dim), from the one with respect to `unit_points`."""
    found = np.empty_like(points)
    for i in range(len(points)):
        radial = (gradient[i] * points[i]).sum()
        found[i] = (gradient[i] - radial * points[i]) / lengths[i]
    return found


@njit(fastmath=True)
def _distance(a: Matrix, b: Matrix) -> float:
    total = 0.0
    for c in range(len(a)):
        total += (a[c] - b[c]) ** 2
    return np.sqrt(total)  # type: ignore[no-any-return]
