"""Exact search of vectors that are made ready once.

`nearest_neighbours` makes its gallery ready in every call, which for a single query is nearly all of its work (0.32 s
at 100,000 × 128 on one core). Here the ready gallery is kept and gives a few rows too many, among which
`nearest_neighbours` then chooses; where rounding could have left out one that belongs there, it looks at all of them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from nearkin.clustering import nearest_neighbours
from nearkin.clustering.distances import SquaredDistances, row_blocks
from nearkin.search.store import Embeddings

Ids = npt.NDArray[np.int64]
ROUNDING = 1e-5  # of a squared distance, relative to the largest squared norm that entered it; generous for float32


class Exact:
    """Finds the nearest of vectors (items, dim), which have ascending ids (items,).

    >>> line = Exact(np.array([3, 5, 8]), np.array([[0.0], [1.0], [3.0]], dtype=np.float32))
    >>> distances, ids = line.nearest(np.array([[2.5]], dtype=np.float32), k=2)
    >>> distances.tolist(), ids.tolist()
    ([[0.5, 1.5]], [[8, 5]])
    """

    def __init__(self, ids: Ids, vectors: Embeddings) -> None:
        self.ids = ids
        self._vectors = torch.from_numpy(vectors)
        self._origin = self._vectors.mean(0) if len(ids) else torch.zeros(vectors.shape[1])
        moved = self._vectors - self._origin
        self._largest = moved.square().sum(1).max().item() if len(ids) else 0.0
        self._squared_distances = SquaredDistances(moved)

    def __len__(self) -> int:
        return len(self.ids)

    def nearest(self, queries: Embeddings, k: int) -> tuple[Embeddings, Ids]:
        """Distances and ids, both (queries, at most k), nearest first; of equal distances the lowest id first."""
        k = min(k, len(self))
        if k == 0 or len(queries) == 0:
            return np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
        wanted = torch.from_numpy(queries)
        parts = [self._nearest(wanted[block], k) for block in row_blocks(len(queries), len(self))]
        distances, rows = (torch.cat(part).numpy() for part in zip(*parts, strict=True))
        return distances, self.ids[rows]

    def _nearest(self, queries: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        spare = 2 * k + 32
        if spare >= len(self) or len(queries) * spare > len(self):
            return nearest_neighbours(queries, self._vectors, k)
        moved = queries - self._origin
        squared, candidates = self._squared_distances.rounded(moved).topk(spare, largest=False)
        rows = candidates.unique()
        distances, places = nearest_neighbours(queries, self._vectors[rows], k)
        # What is no candidate is at least as far as the farthest candidate, but for rounding.
        error = ROUNDING * (self._largest + moved.square().sum(1))
        if not bool((distances[:, -1].square() + error < squared.amax(1) - error).all()):
            return nearest_neighbours(queries, self._vectors, k)
        return distances, rows[places]
