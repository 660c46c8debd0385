"""Distances of all pairs with two loops, and the spectral decay of Roth et al. 2020 as in their code."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from scipy.stats import entropy


def distances_by_kind(x, labels, clusters):
    found = {"positives": [], "negatives": [], "negatives_within_clusters": [], "negatives_across_clusters": []}
    for i, j in combinations(range(len(x)), 2):
        distance = np.sqrt(sum((a - b) ** 2 for a, b in zip(x[i], x[j], strict=True)))
        if labels[i] == labels[j]:
            found["positives"].append(distance)
        else:
            found["negatives"].append(distance)
            where = "within" if clusters[i] == clusters[j] else "across"
            found[f"negatives_{where}_clusters"].append(distance)
    return found


def spectral_decay(x):
    values = np.linalg.svd(x, compute_uv=False)
    uniform = np.ones(len(values)) / len(values)
    return entropy(uniform, values / values.sum())
