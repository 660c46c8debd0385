"""NRA straight from the paper's equations 5–13, one anchor and one pair at a time, in float64."""

from __future__ import annotations

import math

import numpy as np


def transfer(r: float, alpha: float) -> float:
    if r < 0.5:
        return 0.5 * (2 * r) ** alpha
    return 1 - 0.5 * (2 * (1 - r)) ** alpha


def rank_approximation_loss(x: np.ndarray, y: np.ndarray, alpha: float = 4.0, eps: float = 1e-4) -> float:
    x = np.asarray(x, dtype=np.float64)
    m = len(x)
    total = 0.0
    for i in range(m):
        positives = [math.dist(x[i], x[j]) for j in range(m) if j != i and y[j] == y[i]]
        negatives = [math.dist(x[i], x[j]) for j in range(m) if y[j] != y[i]]
        everything = positives + negatives
        if not everything or max(everything) == min(everything):
            continue
        low, high = min(everything), max(everything)
        if positives:
            similarity = 1 - transfer((max(positives) - low) / (high - low), alpha)
            total -= math.log(similarity + eps)
        if negatives:
            similarity = 1 - transfer((min(negatives) - low) / (high - low), alpha)
            total -= math.log(1 - similarity + eps)
    return total / m


def straightened_term(rank: float, alpha: float, eps: float) -> float:
    """−log(w + ε) from ¼ on, and its tangent below."""
    if rank >= 0.25:
        return -math.log(transfer(rank, alpha) + eps)
    slope = alpha * 0.5 ** (alpha - 1) / (transfer(0.25, alpha) + eps)
    return straightened_term(0.25, alpha, eps) + slope * (0.25 - rank)


def gradient_everywhere_loss(x: np.ndarray, y: np.ndarray, alpha: float = 4.0, eps: float = 1e-4) -> float:
    """The variant that counts r⁻ from the nearest positive and r⁺ up to the farthest negative."""
    m = len(x)
    total = 0.0
    for i in range(m):
        positives = [math.dist(x[i], x[j]) for j in range(m) if j != i and y[j] == y[i]]
        negatives = [math.dist(x[i], x[j]) for j in range(m) if y[j] != y[i]]
        everything = positives + negatives
        if not positives or not negatives or max(everything) == min(everything):
            continue
        spread = max(everything) - min(everything)
        total += straightened_term((max(negatives) - max(positives)) / spread, alpha, eps)
        total += straightened_term((min(negatives) - min(positives)) / spread, alpha, eps)
    return total / m
