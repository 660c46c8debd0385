"""Cross-entropy of a linear classifier, one item and one class at a time, in float64."""

from __future__ import annotations

import math

import numpy as np


def softmax_loss(x: np.ndarray, y: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> float:
    total = 0.0
    for vector, label in zip(x, y, strict=True):
        scores = [math.exp(float(np.dot(w, vector)) + float(b)) for w, b in zip(weight, bias, strict=True)]
        total -= math.log(scores[label] / sum(scores))
    return total / len(x)
