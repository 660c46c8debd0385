"""Eq. 6 of Rippel et al. 2016, query by query in float64."""

from __future__ import annotations

import numpy as np


def soft_labels(queries, centroids, labels, variance, nearest, exclude=None):
    """The label of every query; exponentials relative to the nearest, ties go to the lowest label."""
    found = []
    for number, query in enumerate(queries):
        squares = ((query - centroids) ** 2).sum(1)
        voters = [c for c in range(len(centroids)) if exclude is None or c != exclude[number]]
        voters = sorted(voters, key=lambda c: (squares[c], c))[:nearest]
        sums = {}
        for c in voters:
            exponent = (squares[voters[0]] - squares[c]) / (2 * variance)
            sums[labels[c]] = sums.get(labels[c], 0.0) + np.exp(exponent)
        found.append(max(sorted(sums), key=lambda label: sums[label]))
    return np.array(found)
