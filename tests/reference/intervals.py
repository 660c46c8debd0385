"""Bootstrap intervals and sign-flip tests, one draw at a time, with numpy's default random generator."""

from __future__ import annotations

import itertools
import math

import numpy as np


def groups_of(values, classes=None):
    """Groups of values that are drawn or flipped together: single values, or those of a class."""
    if classes is None:
        return [[value] for value in values]
    return [[value for value, c in zip(values, classes, strict=True) if c == one] for one in sorted(set(classes))]


def bootstrap_interval(groups, level, resamples, random):
    """Percentiles of the mean over all values of the drawn groups."""
    means = []
    for _ in range(resamples):
        drawn = [value for g in random.integers(len(groups), size=len(groups)) for value in groups[g]]
        means.append(math.fsum(drawn) / len(drawn))
    return percentile(means, (1 - level) / 2), percentile(means, (1 + level) / 2)


def percentile(values, share):
    """Linear interpolation between the two nearest sorted values."""
    place = share * (len(values) - 1)
    below = math.floor(place)
    above = min(below + 1, len(values) - 1)
    ordered = sorted(values)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def flipped_totals(groups, flips):
    """The total for each row of flips; 1 flips the sign of all values of a group."""
    sums = [math.fsum(group) for group in groups]
    return [math.fsum(-s if flip else s for s, flip in zip(sums, row, strict=True)) for row in flips]


def sign_flip_p_value(groups, resamples, random):
    """(1 + as large as observed) / (1 + resamples)."""
    flips = [random.integers(2, size=len(groups)) for _ in range(resamples)]
    return (1 + _as_large(groups, flips)) / (1 + resamples)


def exact_p_value(groups):
    """The share of all 2^G flips with a total at least as large as the observed one."""
    flips = list(itertools.product([0, 1], repeat=len(groups)))
    return _as_large(groups, flips) / len(flips)


def _as_large(groups, flips):
    observed = abs(math.fsum(value for group in groups for value in group))
    return int(np.sum(np.abs(flipped_totals(groups, flips)) >= observed - 1e-9))
