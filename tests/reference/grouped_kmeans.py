"""One k-means per group in a plain loop, and BIC from its formula."""

from __future__ import annotations

import math

import numpy as np
from sklearn.cluster import KMeans


def inertia_per_group(x, groups, k, seed=0):
    """(G,) inertia by ascending group; k is clipped to the number of distinct points."""
    inertias = []
    for group in np.unique(groups):
        members = x[groups == group].astype(np.float64)
        clusters = min(k, len(np.unique(members, axis=0)))
        inertias.append(KMeans(clusters, n_init=1, random_state=seed).fit(members).inertia_)
    return np.array(inertias)


def squares_within_group(x, groups, centroids, group_of):
    """(N, C) squared distances of items to centroids; infinite for centroids of other groups."""
    squares = ((x[:, None].astype(np.float64) - centroids[None]) ** 2).sum(2)
    squares[groups[:, None] != group_of[None]] = np.inf
    return squares


def fewest_by_bic(inertias, sizes, d):
    """The number of clusters (1, 2, …) with the lowest BIC, given the inertia and cluster sizes for each."""
    best, least = 1, math.inf
    for k, (inertia, members) in enumerate(zip(inertias, sizes, strict=True), start=1):
        n = sum(members)
        if k > 1 and k >= n:
            break
        fit = n * d * math.log(inertia / (max(1, n - k) * d)) if inertia > 0 else -math.inf
        shares = -2 * sum(m * math.log(m / n) for m in members)
        if fit + shares + k * (d + 1) * math.log(n) < least:
            best, least = k, fit + shares + k * (d + 1) * math.log(n)
    return best
