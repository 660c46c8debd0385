"""Agreement of a clustering with labels, computed from sums of table entries, and lower bounds of NMI.

Bounds: let y be the clustering before a change, y′ the clustering after it, and Y the labels. Then MI(y′, Y) ≥ MI(y, Y)
− H(y | y′), because y′ and y together contain at least as much information about Y as y alone, and H(y′) ≤ H(y) +
H(y′ | y). If c of m points change their cluster, both conditional entropies are bounded by the binary entropy h(c/m)
(which points change) plus c/m times the logarithm of the number of other clusters (where they come from or go to). The
bounds decrease with c, so it is safe to overestimate c.

`in_cells` and `in_sizes` are the table entries summed over the contingency table's cells and over the cluster sizes.
For NMI and AMI the entries are n log n, and all entropies are multiplied by m.
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
    """Tables from which the agreement of a clustering with the labels is computed (see `agreement.py`)."""

    kind: int
    counts: Floats  # (m + 1,) entry of each count, to be summed over the contingency table's cells and over clusters
    steps: Floats  # (m + 1,) counts[n] − counts[n − 1]
    expected: Floats  # (m + 1,) entry of each count, to be summed over the clusters; used for AMI only
    labels: float  # sum of `counts` over the classes
    whole: float  # entry of the number of all points


@inlined
def agreement_of(margin: Margin, in_cells: float, in_sizes: float, sizes: Integers) -> float:
    """NMI (geometric mean), AMI (arithmetic mean) or ARI, from the summed table entries."""
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
    """A lower bound of NMI after a new cluster has taken points from the others; they all go to the same cluster."""
    if clusters == 0:
        return 0.0
    lost = taken * np.log(min(taken, clusters))
    return _lower_bound(margin, in_cells, in_sizes, lost, _binary_entropy(margin, taken))


@inlined
def nmi_with_moved_points(margin: Margin, in_cells: float, in_sizes: float, clusters: int, moved: int) -> float:
    """A lower bound of NMI after points have moved between two or more clusters in any way."""
    unknown = _binary_entropy(margin, moved) + moved * np.log(clusters - 1)
    return _lower_bound(margin, in_cells, in_sizes, unknown, unknown)


@inlined
def _lower_bound(margin: Margin, in_cells: float, in_sizes: float, lost: float, gained: float) -> float:
    mutual, clusters = in_cells - in_sizes - margin.labels + margin.whole, margin.whole - in_sizes
    product = (clusters + gained) * (margin.whole - margin.labels)
    return max(0.0, (mutual - lost) / np.sqrt(product)) if product > 0 else 0.0


@inlined
def _binary_entropy(margin: Margin, moved: int) -> float:
    """m h(c/m), with c limited to m/2, because h decreases beyond one half."""
    m = len(margin.counts) - 1
    half = min(moved, m // 2)
    return margin.whole - margin.counts[half] - margin.counts[m - half]
