"""Some items that stand for the gallery, drawn by their ids alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nearkin.search.store import Store

Ids = npt.NDArray[np.uint64]


def sample(store: Store, most: int) -> list[int]:
    """Ids drawn evenly and in random order: those with the lowest hash, so that a gallery that grows changes few."""
    ids = np.array(store.some(len(store)), np.uint64)
    lowest: list[int] = ids[np.argsort(_hashes(ids))[:most]].tolist()
    return lowest


def _hashes(ids: Ids) -> Ids:
    """The last steps of SplitMix64: no two ids share one.

    >>> _hashes(np.array([0, 1], np.uint64)).tolist()
    [0, 6238072747940578789]
    """
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        ids = (ids ^ (ids >> np.uint64(shift))) * np.uint64(factor)
    return ids ^ (ids >> np.uint64(31))
