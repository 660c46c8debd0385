"""The two indexes that search a gallery's vectors: exact, and approximate with faiss for large galleries."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import math
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nearkin.clustering import nearest_neighbours
from nearkin.clustering.distances import Distances, row_blocks
from nearkin.clustering.neighbours import nearest_in
from nearkin.files import atomic_path, open_regular
from nearkin.progress import bar
from nearkin.search.store import Embeddings

log = logging.getLogger("nearkin")

EXACT_UP_TO = 100_000
# Up to here, as far as was measured, HNSW finds more (99.6 against IVF's 95.5 % of the ten nearest of a million) for
# up to four times the time to build (docs/performance.md); beyond, building would count more.
HNSW_UP_TO = 1_000_000
# Of every item in HNSW's graph. Of the ten nearest of a million blobs 16 find 98.0 % with 2,048 explored, 32 99.6 %
# with 1,024; an item takes 272 bytes beside its vector instead of 144, and building 1.5 times as long.
LINKS = 32
TRAIN_PER_CELL = 40  # items that each cell of IVF is trained on; faiss asks for 39
TARGET_RECALL = 0.99  # then no more effort is made
TUNE_QUERIES, TUNE_K = 1000, 10  # the effort is tuned on the 10 nearest of 1,000 items
BUFFER = 2**20

Ids = npt.NDArray[np.int64]
Chunks = Iterable[tuple[Ids, Embeddings]]
Search = Callable[[Embeddings, int], Iterable[Iterable[float]]]


class ExactIndex:
    """Finds the nearest of vectors (items, dim), which have ascending ids (items,), by distance in float64.

    The vectors are prepared once: for a single query that is nearly all of the work of `nearest_neighbours` (0.32 s at
    100,000 × 128 on one core).

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
        """Distances in float32 and ids, (queries, at most k), nearest first; of equal distances the lowest id first."""
        k = min(k, len(self))
        distances, rows = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
        if self._distances is not None and k > 0:
            for these in row_blocks(len(queries), len(self)):
                block = self._distances.block(torch.from_numpy(queries[these]))
                found, columns = nearest_in(block, k)
                distances[these], rows[these] = (found * block.scale).numpy(), columns.numpy()
        return distances, self.ids[rows]


class ApproximateIndex:
    """A faiss index of at least one item; its file is derived from the items and can be built again.

    It proposes candidates by id. It still proposes items that were removed since it was built and does not know those
    that were added; the store takes care of both.

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
        """An index of items that come in chunks of ids (n,) and vectors (n, dim); a sample (m, dim) to learn from."""
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
        """None, and a warning, where it cannot be used: search is exact then."""
        if not path.is_file():
            reason = f"{path} is missing; index again to build it"
        elif not available():
            reason = "faiss is not installed; pip install 'nearkin[search]'"
        else:
            faiss = _faiss()
            try:
                with open_regular(path, follow=False) as file:
                    # Lengths in the file are not trusted: no part of it is longer than the whole.
                    faiss.set_deserialization_vector_byte_limit(os.fstat(file.fileno()).st_size)
                    index = faiss.read_index(faiss.PyCallbackIOReader(file.read, BUFFER))
                if index.d != dim:
                    raise ValueError(index.d)
                return cls(index)
            except (OSError, RuntimeError, AttributeError, ValueError, MemoryError):  # whatever is in such a file
                reason = f"{path} is damaged; delete it and index again"
        log.warning("search is exact, which takes longer: %s", reason)
        return None

    def save(self, path: Path) -> None:
        faiss = _faiss()
        # Python writes it, so that a full disk is an OSError.
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
        """How many items of HNSW's graph, or cells of IVF, are visited for a query; saved with the index."""
        return int(self._ivf.nprobe if self._hnsw is None else self._hnsw.efSearch)

    @effort.setter
    def effort(self, effort: int) -> None:
        if self._hnsw is None:
            self._ivf.nprobe = effort
        else:
            self._hnsw.efSearch = effort

    def candidates(self, queries: Embeddings, count: int) -> tuple[Embeddings, Ids]:
        """Squared distances and ids (queries, count), nearest first; the id is −1 where it finds no more."""
        faiss = _faiss()
        if self._hnsw is not None:
            how = faiss.SearchParametersHNSW(efSearch=max(self.effort, 2 * count))
        else:
            enough = 4 * count * self._ivf.nlist // len(self)  # cells for several times as many items
            how = faiss.SearchParametersIVF(nprobe=min(self._ivf.nlist, max(self.effort, enough)))
        # Where faiss.contrib.torch_utils was imported (pytorch-metric-learning does), `search` takes no parameters.
        search = getattr(self._index, "search_numpy", self._index.search)
        squared, ids = search(queries, count, params=how)
        return squared, ids

    def tune(self, search: Search, queries: Embeddings, chunks: Chunks) -> tuple[float, float]:
        """Sets the lowest effort with which a search that uses this index finds nearly all of the nearest.

        Args:
            search: queries (queries, dim) and k -> the distances of the k nearest of all items.
            queries: (queries, dim), items themselves.
            chunks: all items.

        Returns:
            the share that is found, and how many times as fast as exact search that is.
        """
        limits, exact_seconds = _limits(queries, chunks)
        first = 64 if self._hnsw is not None else 8
        for effort in (first << doubled for doubled in range(6)):
            self.effort = effort
            start = time.perf_counter()
            found = search(queries, TUNE_K + 1)
            seconds = time.perf_counter() - start
            right = sum(each <= limit for near, limit in zip(found, limits, strict=True) for each in near)
            share = (right - len(queries)) / (TUNE_K * len(queries))  # every item finds itself
            if share >= TARGET_RECALL:
                break
        return share, exact_seconds / seconds


def _limits(queries: Embeddings, chunks: Chunks) -> tuple[list[float], float]:
    """How far the nearest of every query are, itself among them; and the seconds that finding them exactly took.

    Distances, not ids: of items that are equally far any will do.
    """
    wanted = TUNE_K + 1
    nearest, seconds = torch.full((len(queries), wanted), torch.inf), 0.0
    for _, vectors in chunks:
        start = time.perf_counter()
        these = nearest_neighbours(torch.from_numpy(queries), torch.from_numpy(vectors), min(wanted, len(vectors)))[0]
        nearest = torch.cat([nearest, these], 1).topk(wanted, largest=False).values
        seconds += time.perf_counter() - start
    return (nearest.amax(1) * (1 + 1e-6)).tolist(), seconds  # they were rounded to float32


def _faiss() -> Any:
    return importlib.import_module("faiss")  # it has types in some versions, and only for a part of what it has


def available() -> bool:
    return importlib.util.find_spec("faiss") is not None


def signature(path: Path) -> tuple[int, int, int] | None:
    """What changes when a file is replaced; None where there is none."""
    try:
        seen = path.stat()
    except OSError:
        return None
    return seen.st_ino, seen.st_size, seen.st_mtime_ns


def sample_size(items: int) -> int:
    """How many items `ApproximateIndex.build` learns from; HNSW needs one, for the dimension."""
    return 1 if items <= HNSW_UP_TO else TRAIN_PER_CELL * _cells(items)


def _cells(items: int) -> int:
    """The number of IVF's cells: finding the cells then takes about as long as searching them."""
    return 4 * math.isqrt(items)
