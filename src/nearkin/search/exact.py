"""Exact search of vectors that are made ready once.

`nearest_neighbours` makes its gallery ready in every call, which for a single query is nearly all of its work (0.32 s
at 100,000 × 128 on one core). Here the ready gallery is kept.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from nearkin.clustering.distances import Distances, row_blocks
from nearkin.clustering.neighbours import nearest_in
from nearkin.search.store import Embeddings

Ids = npt.NDArray[np.int64]


class Exact:
    """Finds the nearest of vectors (items, dim), which have ascending ids (items,), by distance in float64.

    >>> line = Exact(np.array([3, 5, 8]), np.array([[0.0], [1.0], [3.0]], dtype=np.float32))
    >>> distances, ids = line.nearest(np.array([[2.5]], dtype=np.float32), k=2)
    >>> distances.tolist(), ids.tolist()
    ([[0.5, 1.5]], [[8, 5]])
    """

    def __init__(self, ids: Ids, vectors: Embeddings) -> None:
        self.ids = ids
        self._distances = Distances(torch.from_numpy(vectors)) if len(ids) else None

    def __len__(self) -> int:
        return len(self.ids)

    def nearest(self, queries: Embeddings, k: int) -> tuple[Embeddings, Ids]:
        """Distances in float32 and ids, (queries, at most k), nearest first; of equal distances the lowest id first."""
        k = min(k, len(self))
        distances, rows = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
        if self._distances is not None and k > 0:
            for these in row_blocks(len(queries), len(self)):
                block = self._distances.block(torch.from_numpy(queries[these]))
                found, columns = nearest_in(block, k)
                distances[these], rows[these] = (found * block.scale).numpy(), columns.numpy()
        return distances, self.ids[rows]
