"""The agreement of a clustering with labels, from sums of look-ups over counts, and how far NMI can fall.

Bounds: let y be the clustering before, y′ after, and Y the labels. Then MI(y′, Y) ≥ MI(y, Y) − H(y | y′), as y′ and y
together know no less of Y than y does, and H(y′) ≤ H(y) + H(y′ | y). Both conditional entropies follow from the number
c of m points that change: whether a point does has the binary entropy h(c/m), and where it came from, or went, at most
the logarithm of the number of other clusters. The bounds fall with c, so that too large a c is safe.

`in_cells` and `in_sizes` are the look-ups summed over the contingency table and over the cluster sizes; for NMI and AMI
they are n log n, and all entropies are times m.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nearkin.clustering._compiled import inlined

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

NMI, AMI, ARI = range(3)


class Margin(NamedTuple):
    """How a clustering's agreement with the labels follows from sums of look-ups over counts (see `agreement.py`)."""

    kind: int
    counts: Floats  # (m + 1,) per count, summed over the contingency table's cells and over its clusters
    steps: Floats  # (m + 1,) counts[n] − counts[n − 1]
    expected: Floats  # (m + 1,) per count, summed over the clusters; read for AMI alone
    labels: float  # `counts`, summed over the classes
    whole: float  # `counts` of all points together


@inlined
def agreement_of(margin: Margin, in_cells: float, in_sizes: float, sizes: Integers) -> float:
    """NMI (geometric mean), AMI (arithmetic mean) or ARI from the summed look-ups."""
    if margin.kind == ARI:
        chance = in_sizes * margin.labels / margin.whole if margin.whole > 0 else 0.0
        best = 0.5 * (in_sizes + margin.labels)
        return (in_cells - chance) / (best - chance) if best != chance else 1.0
    mutual = in_cells - in_sizes - margin.labels + margin.whole
    clusters, labels = margin.whole - in_sizes, margin.whole - margin.labels  # entropies, times m
    if margin.kind == NMI:
        if clusters <= 0 or labels <= 0:
            return 1.0 if clusters <= 0 and labels <= 0 else 0.0
        return max(mutual, 0.0) / np.sqrt(clusters * labels)
    expected = 0.0
    for size in sizes:
        expected += margin.expected[size]
    span = 0.5 * (clusters + labels) - expected
    return (mutual - expected) / span if abs(span) > 1e-9 * margin.whole else 1.0


@inlined
def nmi_with_new_cluster(margin: Margin, in_cells: float, in_sizes: float, clusters: int, taken: int) -> float:
    """The least NMI after a new cluster has taken points from the others: where they went is known."""
    if clusters == 0:
        return 0.0
    lost = taken * np.log(min(taken, clusters))
    return _least(margin, in_cells, in_sizes, lost, _whether(margin, taken))


@inlined
def nmi_with_moved_points(margin: Margin, in_cells: float, in_sizes: float, clusters: int, moved: int) -> float:
    """The least NMI after points have moved between two or more clusters in any way."""
    unknown = _whether(margin, moved) + moved * np.log(clusters - 1)
    return _least(margin, in_cells, in_sizes, unknown, unknown)


@inlined
def _least(margin: Margin, in_cells: float, in_sizes: float, lost: float, gained: float) -> float:
    mutual, clusters = in_cells - in_sizes - margin.labels + margin.whole, margin.whole - in_sizes
    product = (clusters + gained) * (margin.whole - margin.labels)
    return max(0.0, (mutual - lost) / np.sqrt(product)) if product > 0 else 0.0


@inlined
def _whether(margin: Margin, moved: int) -> float:
    """m h(c/m), which would fall again beyond one half."""
    m = len(margin.counts) - 1
    half = min(moved, m // 2)
    return margin.whole - margin.counts[half] - margin.counts[m - half]
