"""Proxy-NCA straight from the paper's equation 4, one example and one proxy at a time, in float64."""

from __future__ import annotations

import math

import numpy as np


def proxy_nca_loss(
    x: np.ndarray, y: np.ndarray, proxies: np.ndarray, scale: float = 1.0, positive_in_denominator: bool = False
) -> float:
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    proxies = proxies / np.linalg.norm(proxies, axis=1, keepdims=True)
    total = 0.0
    for i in range(len(x)):
        nearness = [math.exp(-scale * float(((x[i] - proxy) ** 2).sum())) for proxy in proxies]
        denominator = sum(nearness) if positive_in_denominator else sum(nearness) - nearness[y[i]]
        total -= math.log(nearness[y[i]] / denominator)
    return total / len(x)
