"""Some items that stand for the gallery, drawn without reading it."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from nearkin.search.store import Store


def sample(store: Store, most: int) -> list[int]:
    """Ids drawn evenly and in random order; the same ones as long as the gallery does not change."""
    counts = store.counts()
    ends = list(accumulate(counts.values()))
    total = ends[-1] if ends else 0
    drawn = np.random.default_rng(0).permutation(total)[:most]  # places in the gallery, ordered by label
    labels = np.searchsorted(ends, drawn, side="right")
    ids = np.zeros(len(drawn), np.int64)
    for place, (label, count) in enumerate(counts.items()):
        mine = np.flatnonzero(labels == place)
        if len(mine):
            within = drawn[mine] - (ends[place] - count)
            found = store.some(int(within.max()) + 1, label)
            # Another process may have removed some since they were counted.
            ids[mine] = [found[where] if where < len(found) else 0 for where in within]
    return [id for id in ids.tolist() if id]
