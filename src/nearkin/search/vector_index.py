"""The two indexes that search a gallery's vectors: exact, and approximate with faiss for large galleries."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nearkin.clustering import nearest_neighbours
from nearkin.clustering.distances import Distances
from nearkin.clustering.neighbours import nearest_in
from nearkin.files import atomic_path, open_regular
from nearkin.progress import bar
from nearkin.search.store import Embeddings

log = logging.getLogger("nearkin")

EXACT_UP_TO = 100_000
# Up to this size, HNSW was measured to have the better recall: 99.6 % of the ten nearest among a million items, against
# 95.5 % for IVF, at up to four times the build time (docs/performance.md). Above it, the build time would matter more.
HNSW_UP_TO = 1_000_000
# Links per item in the HNSW graph. Among a million random blobs, 16 links find 98.0 % of the ten nearest with efSearch
# 2,048, and 32 links find 99.6 % with 1,024. Each item then takes 272 bytes besides its vector instead of 144, and the
# build takes 1.5 times as long.
LINKS = 32
TRAIN_PER_CELL = 40  # training items per IVF cell; faiss asks for at least 39
TARGET_RECALL = 0.99  # tuning stops here
TUNE_QUERIES, TUNE_K = 1000, 10  # tuned on the 10 nearest of 1,000 items
BUFFER = 2**20  # bytes
_reading = threading.Lock()

Ids = npt.NDArray[np.int64]
Chunks = Iterable[tuple[Ids, Embeddings]]
Search = Callable[[Embeddings, int], Iterable[Iterable[float]]]


class ExactIndex:
    """Exact search in float64 among vectors (items, dim) with ascending ids (items,).

    The vectors are prepared once. For a single query, that is nearly all of the work of `nearest_neighbours` (0.32 s
    for 100,000 × 128 on one core).

    >>> line = ExactIndex(np.array([3, 5, 8]), np.array([[0.0], [1.0], [3.0]], dtype=np.float32))
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
        """Distances in float32 and ids, (queries, at most k), nearest first; ties are sorted by id."""
        k = min(k, len(self))
        distances, rows = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
        if self._distances is not None and k > 0:
            for part, block in self._distances.blocks(torch.from_numpy(queries)):
                found, columns = nearest_in(block, k)
                distances[part], rows[part] = (found * block.scale).numpy(), columns.numpy()
        return distances, self.ids[rows]


class ApproximateIndex:
    """A faiss index of at least one item. Its file is derived from the items and can be rebuilt.

    It proposes candidates by id. After it is built, it still proposes removed items and does not know added ones; the
    store handles both.

    >>> vectors = np.eye(2, dtype=np.float32)
    >>> index = ApproximateIndex.build(2, vectors, [(np.array([4, 7]), vectors)])
    >>> index.candidates(vectors[1:], 2)[1].tolist()
    [[7, 4]]
    """

    def __init__(self, index: Any) -> None:
        faiss = _faiss()
        self._index = index
        inner = faiss.downcast_index(index.index)
        self._hnsw = inner.hnsw if isinstance(inner, faiss.IndexHNSWFlat) else None
        self._ivf = inner
        self.dim: int = index.d
        self.highest = int(faiss.vector_to_array(index.id_map).max())

    @classmethod
    def build(cls, items: int, sample: Embeddings, chunks: Chunks) -> ApproximateIndex:
        """Builds an index from chunks of ids (n,) and vectors (n, dim), and a sample (m, dim) to train on."""
        faiss = _faiss()
        dim = sample.shape[1]
        if items <= HNSW_UP_TO:
            inner = faiss.IndexHNSWFlat(dim, LINKS)
        else:
            inner = faiss.IndexIVFFlat(faiss.IndexFlatL2(dim), dim, _cells(items))
            inner.train(sample)
        index = faiss.IndexIDMap(inner)
        with bar("building the index", items) as advance:
            for ids, vectors in chunks:
                index.add_with_ids(vectors, ids)
                advance(len(ids))
        return cls(index)

    @classmethod
    def load(cls, path: Path, dim: int) -> ApproximateIndex | None:
        """Loads an index; returns None with a warning if it cannot be used, so that search is exact."""
        if not path.is_file():
            reason = f"{path} is missing; index again to build it"
        elif not available():
            reason = "faiss is not installed; pip install 'nearkin[search]'"
        else:
            faiss = _faiss()
            try:
                # Lengths in the file are not trusted: no part of it is longer than the whole.
                with open_regular(path, follow=False) as file, _byte_limit(os.fstat(file.fileno()).st_size):
                    index = faiss.read_index(faiss.PyCallbackIOReader(file.read, BUFFER))
                if index.d != dim:
                    raise ValueError(index.d)
                return cls(index)
            except (OSError, RuntimeError, AttributeError, ValueError, MemoryError):  # the file may contain anything
                reason = f"{path} is damaged; delete it and index again"
        log.warning("searching exactly, which takes longer: %s", reason)
        return None

    def save(self, path: Path) -> None:
        faiss = _faiss()
        # Written by Python, not by faiss, so that a full disk raises an OSError.
        with atomic_path(path) as partial, partial.open("wb") as file:
            faiss.write_index(self._index, faiss.PyCallbackIOWriter(file.write, BUFFER))

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def __str__(self) -> str:
        if self._hnsw is not None:
            return f"HNSW ({self._hnsw.nb_neighbors(1)} links, {self.effort} explored)"
        return f"IVF ({self._ivf.nlist:,} cells, {self.effort} probed)"

    @property
    def effort(self) -> int:
        """HNSW's efSearch or IVF's nprobe: how much of the index a query visits. It is saved with the index."""
        return int(self._ivf.nprobe if self._hnsw is None else self._hnsw.efSearch)

    @effort.setter
    def effort(self, effort: int) -> None:
        if self._hnsw is None:
            self._ivf.nprobe = effort
        else:
            self._hnsw.efSearch = effort

    def candidates(self, queries: Embeddings, count: int) -> tuple[Embeddings, Ids]:
        """Squared distances and ids (queries, count), nearest first; the id is −1 where there are no more."""
        faiss = _faiss()
        if self._hnsw is not None:
            parameters = faiss.SearchParametersHNSW(efSearch=max(self.effort, 2 * count))
        else:
            enough = 4 * count * self._ivf.nlist // len(self)  # cells that hold about 4 * count items
            parameters = faiss.SearchParametersIVF(nprobe=min(self._ivf.nlist, max(self.effort, enough)))
        # faiss.contrib.torch_utils, which pytorch-metric-learning imports, replaces `search` by one without `params`.
        search = getattr(self._index, "search_numpy", self._index.search)
        squared, ids = search(queries, count, params=parameters)
        return squared, ids

    def tune(self, search: Search, queries: Embeddings, chunks: Chunks) -> tuple[float, float]:
        """Sets the lowest effort with which a search reaches the target recall.

        Args:
            search: function of queries (queries, dim) and k that returns the distances of the k nearest items.
            queries: (queries, dim); they must be items of the index.
            chunks: all items.

        Returns:
            Recall, and speed relative to exact search.
        """
        limits, exact_seconds = _limits(queries, chunks)
        first = 64 if self._hnsw is not None else 8
        for effort in (first << doublings for doublings in range(6)):
            self.effort = effort
            start = time.perf_counter()
            found = search(queries, TUNE_K + 1)
            seconds = time.perf_counter() - start
            right = sum(distance <= limit for row, limit in zip(found, limits, strict=True) for distance in row)
            recall = (right - len(queries)) / (TUNE_K * len(queries))  # without the query, which finds itself
            if recall >= TARGET_RECALL:
                break
        return recall, exact_seconds / seconds


def _limits(queries: Embeddings, chunks: Chunks) -> tuple[list[float], float]:
    """The distance of each query's farthest true neighbour, and the seconds that exact search took.

    The neighbours include the query itself. Distances instead of ids allow for ties.
    """
    wanted = TUNE_K + 1
    nearest, seconds = torch.full((len(queries), wanted), torch.inf), 0.0
    for _, vectors in chunks:
        start = time.perf_counter()
        found = nearest_neighbours(torch.from_numpy(queries), torch.from_numpy(vectors), min(wanted, len(vectors)))[0]
        nearest = torch.cat([nearest, found], 1).topk(wanted, largest=False).values
        seconds += time.perf_counter() - start
    return (nearest.amax(1) * (1 + 1e-6)).tolist(), seconds  # tolerance for rounding to float32


@contextmanager
def _byte_limit(size: int) -> Iterator[None]:
    """In this block, faiss reads no vector of more bytes; the limit is one for the whole process."""
    faiss = _faiss()
    with _reading:
        before = faiss.get_deserialization_vector_byte_limit()
        faiss.set_deserialization_vector_byte_limit(size)
        try:
            yield
        finally:
            faiss.set_deserialization_vector_byte_limit(before)


def _faiss() -> Any:
    return importlib.import_module("faiss")  # untyped: only some versions have types, and they are incomplete


def available() -> bool:
    return importlib.util.find_spec("faiss") is not None


def signature(path: Path) -> tuple[int, int, int] | None:
    """Values that change when a file is replaced; None if it does not exist."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def sample_size(items: int) -> int:
    """Size of the sample for `ApproximateIndex.build`; HNSW needs one item, for the dimension."""
    return 1 if items <= HNSW_UP_TO else TRAIN_PER_CELL * _cells(items)


def _cells(items: int) -> int:
    """Number of IVF cells; with this many, finding the cells takes about as long as searching them."""
    return 4 * math.isqrt(items)
