"""The compiled part of `class_medoids`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nearkin.clustering._compiled import compiled


@compiled
def medoids(
    distances: npt.NDArray[np.float64], by_class: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The medoid of each class, (C,); the lowest index wins ties. Class c is by_class[ends[c] : ends[c + 1]]."""
    best = np.empty(len(ends) - 1, np.int64)
    for c in range(len(best)):
        members = by_class[ends[c] : ends[c + 1]]
        best[c], least = members[0], np.inf
        for j in members:
            cost = 0.0
            for i in members:
                cost += distances[j, i]
            if cost < least:
                best[c], least = j, cost
    return best
