"""Pair losses straight from their definitions, for given pairs of anchors and references, one pair at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from reference.rank import transfer

Pairs = set[tuple[int, int]]  # rows of anchors and of references


def contrastive(x: np.ndarray, r: np.ndarray, positive: Pairs, negative: Pairs, squared: bool = False) -> float:
    def mean(terms: list[float]) -> float:
        terms = [term**2 / 2 for term in terms] if squared else [term for term in terms if term > 0]
        return sum(terms) / len(terms) if terms else 0.0

    pull = [math.dist(x[i], r[j]) for i, j in positive]
    return mean(pull) + mean([max(0.0, 1 - math.dist(x[i], r[j])) for i, j in negative])


def triplet(x: np.ndarray, r: np.ndarray, positive: Pairs, negative: Pairs, margin: float = 0.2) -> float:
    losses = []
    for i, j in positive:
        to_positive = math.dist(x[i], r[j]) ** 2
        to_negatives = [math.dist(x[i], r[k]) ** 2 for a, k in negative if a == i]
        farther = [distance for distance in to_negatives if distance > to_positive]
        if to_negatives:
            losses.append(max(0.0, to_positive + margin - (min(farther) if farther else max(to_negatives))))
    return sum(losses) / len(losses) if losses else 0.0


def lifted(x: np.ndarray, r: np.ndarray, positive: Pairs, negative: Pairs, within: bool, margin: float = 1.0) -> float:
    """Within a batch, both items of a pair are anchors; a reference only has the anchors it is paired with."""
    losses = []
    for i, j in positive:
        of_other = [(a, k) for a, k in negative if (a == j if within else k == j)]
        pushes = [(a, k) for a, k in negative if a == i] + of_other
        total = sum(math.exp(margin - math.dist(x[a], r[k])) for a, k in pushes)
        losses.append(max(0.0, math.log(total) + math.dist(x[i], r[j])) ** 2 / 2 if pushes else 0.0)
    return sum(losses) / len(losses) if losses else 0.0


def npairs(x: np.ndarray, r: np.ndarray, positive: Pairs, negative: Pairs) -> float:
    """Without the regulariser."""
    losses = []
    for i, j in positive:
        others = sum(math.exp(x[i] @ r[k] - x[i] @ r[j]) for a, k in negative if a == i)
        losses.append(math.log(1 + others))
    return sum(losses) / len(losses) if losses and negative else 0.0


def nca(x: np.ndarray, r: np.ndarray, positive: Pairs, negative: Pairs) -> float:
    losses = []
    for i in range(len(x)):
        own = sum(math.exp(-(math.dist(x[i], r[j]) ** 2)) for a, j in positive if a == i)
        others = sum(math.exp(-(math.dist(x[i], r[k]) ** 2)) for a, k in negative if a == i)
        if own:
            losses.append(-math.log(own / (own + others)))
    return sum(losses) / len(losses) if losses else 0.0


def rank(
    x: np.ndarray, r: np.ndarray, positive: Pairs, negative: Pairs, alpha: float = 4.0, eps: float = 1e-4
) -> float:
    total = 0.0
    for i in range(len(x)):
        near, far = ([math.dist(x[i], r[j]) for a, j in pairs if a == i] for pairs in (positive, negative))
        low, high = min(near + far, default=0.0), max(near + far, default=0.0)
        if low == high:
            continue
        if near:
            total -= math.log(transfer(1 - (max(near) - low) / (high - low), alpha) + eps)
        if far:
            total -= math.log(transfer((min(far) - low) / (high - low), alpha) + eps)
    return total / len(x)


ORACLES: dict[str, Callable[..., float]] = {
    "contrastive": contrastive,
    "triplet": triplet,
    "lifted": lifted,
    "npairs": npairs,
    "nca": nca,
    "rank": rank,
}
