"""Votes and the threshold between known and unknown, item by item, straight from their definitions."""

from __future__ import annotations

import math

import numpy as np


def nearest(vectors: np.ndarray, query: np.ndarray, rows: list[int], k: int) -> list[tuple[float, int]]:
    """(distance, row) of the k nearest among ``rows``."""
    return sorted((float(np.sqrt(((vectors[row] - query) ** 2).sum())), row) for row in rows)[:k]


def vote(found: list[tuple[float, int]], labels: list[str]) -> tuple[str, float, float]:
    """The label with most votes, its share, and the distance of its nearest item."""
    present = dict.fromkeys(labels[row] for _, row in found if labels[row])
    if not present:
        return "", 0.0, math.inf
    votes = {label: sum(1 / distance**2 for distance, row in found if labels[row] == label) for label in present}
    winner = max(votes, key=lambda label: votes[label])
    return winner, votes[winner] / sum(votes.values()), min(d for d, row in found if labels[row] == winner)


def calibrate(vectors: np.ndarray, labels: list[str], false_accepts: float, k: int) -> dict[str, float | None]:
    """What nearkin.search.matching.calibrate computes, with every labelled item as a query."""
    everything = range(len(labels))
    asked = [row for row in everything if labels[row]]
    others = {row: [each for each in everything if each != row] for row in asked}
    strangers = []
    for row in asked:
        left = [each for each in everything if labels[each] != labels[row]]
        strangers.append(vote(nearest(vectors, vectors[row], left, k), labels)[2])
    # The threshold is just below the distance of an unknown item: the largest that accepts few enough of them.
    lines = [math.nextafter(distance, -math.inf) for distance in strangers]
    few = [line for line in lines if sum(d <= line for d in strangers) <= false_accepts * len(strangers) + 1e-9]
    threshold = max(few)
    kin = [row for row in asked if labels.count(labels[row]) > 1]
    answers = {row: vote(nearest(vectors, vectors[row], others[row], k), labels) for row in kin}
    right = [answers[row][0] == labels[row] for row in kin if answers[row][2] <= threshold]
    return {
        "threshold": threshold,
        "false_accepts": sum(d <= threshold for d in strangers) / len(strangers),
        "true_accepts": len(right) / len(kin) if kin else None,
        "accuracy": sum(right) / len(right) if right else None,
        "items": len(asked),
    }
