"""NMI, AMI and ARI of a clustering with labels, as lookup tables indexed by counts.

All three are functions of sums over the contingency table's cells n_ab and over the cluster sizes n_a. A point that
changes its cluster changes only a few counts, so the solver needs a few lookups instead of a new computation.

NMI uses the geometric mean of the entropies, as in Eq. 9 of the facility-location paper (Song et al. 2017). AMI and ARI
are those of scikit-learn (AMI with its default, the arithmetic mean).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from nearkin.clustering._margin import Floats, Integers, Margin


def margin_tables(name: str, class_sizes: Integers) -> Margin:
    """The lookup tables of one measure, for labels with these class sizes (C,).

    >>> tables = margin_tables("ari", np.array([2, 2]))
    >>> tables.counts.tolist(), tables.labels
    ([0.0, 0.0, 1.0, 3.0, 6.0], 2.0)
    """
    from nearkin.clustering._margin import AMI, ARI, NMI, Margin  # numba is slow to import

    points = int(class_sizes.sum())
    table, steps = _pairs(points) if name == "ari" else n_log_n(points)
    expected = _exact_sums(expected_information(class_sizes, np.arange(points + 1))) if name == "ami" else table
    return Margin(
        {"nmi": NMI, "ami": AMI, "ari": ARI}[name],
        table,
        steps,
        expected,
        float(table[class_sizes].sum()),
        float(table[-1]),
    )


@lru_cache(maxsize=8)
def n_log_n(points: int) -> tuple[Floats, Floats]:
    """(points + 1,) n log n, rounded to a grid, and its differences."""
    counts = np.arange(points + 1, dtype=np.float64)
    table = _exact_sums(counts * np.log(np.maximum(counts, 1)))
    return table, np.diff(table, prepend=0.0)


def _pairs(points: int) -> tuple[Floats, Floats]:
    counts = np.arange(points + 1, dtype=np.float64)
    return (counts * counts - counts) / 2, np.maximum(counts - 1, 0)


def _exact_sums(table: Floats) -> Floats:
    """Rounds a table to a grid on which sums over a partition of the points are exact in float64."""
    unit = 2.0 ** (np.ceil(np.log2(max(1.0, np.abs(table).sum()))) - 52)
    return np.asarray(np.rint(table / unit) * unit)


def expected_information(class_sizes: Integers, cluster_sizes: Integers) -> Floats:
    """(clusters,) the terms of clusters with these sizes in m times the expected mutual information of m points.

    The expectation is over shuffled labels with these class sizes, (classes,). It is a sum over clusters and classes
    (Vinh, Epps, Bailey 2010, Eq. 24a). Terms depend only on sizes, so each is computed once per size.

    >>> expected_information(np.array([2, 2]), np.array([1, 3])).round(4).tolist()
    [0.6931, 0.1699]
    """
    m = int(class_sizes.sum())
    log_factorial = np.array([math.lgamma(n + 1) for n in range(m + 1)])  # scipy's takes 0.2 s to import
    sizes, of_cluster = np.unique(cluster_sizes, return_inverse=True)
    size = sizes[:, None]
    total = np.zeros(len(sizes))
    for class_size, repeats in zip(*np.unique(class_sizes, return_counts=True), strict=True):
        n = np.arange(1, class_size + 1)[None, :]  # number of points in both the class and the cluster
        possible = (n <= size) & (size + class_size - n <= m)
        n_out, rest = np.where(possible, size - n, 0), np.where(possible, m - size - class_size + n, 0)
        log_probability = (
            log_factorial[size]
            + log_factorial[m - size]
            + log_factorial[class_size]
            + log_factorial[m - class_size]
            - log_factorial[m]
            - log_factorial[n]
            - log_factorial[n_out]
            - log_factorial[class_size - n]
            - log_factorial[rest]
        )
        gain = n * np.log(m * n / (np.maximum(size, 1) * class_size))
        total += repeats * (gain * np.exp(np.where(possible, log_probability, -np.inf))).sum(axis=1)
    return np.asarray(total[of_cluster])
