"""The map: a sample of the gallery projected to two dimensions, computed in the background."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Thread

import numpy as np
import numpy.typing as npt

from nearkin.errors import UserError
from nearkin.reports.map import project_2d
from nearkin.search.store import Embeddings, Entry, Store
from nearkin.serve.schemas import Point

log = logging.getLogger(__name__)
PAUSE = 4  # minimum time between maps, as a multiple of the time that the last one took: indexing needs the CPU too
Ids = npt.NDArray[np.uint64]
Items = Callable[[list[int]], tuple[dict[int, Entry], Embeddings]]


class SpaceMap:
    """Positions of items, computed in a thread. ``points`` is the latest map."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self._ids: list[int] | None = None
        self._failure: Exception | None = None
        self._thread: Thread | None = None
        self._paused_until = 0.0
        self._closed = False

    def close(self) -> None:
        """Stops logging failures: the store that a running computation reads from is about to close."""
        self._closed = True

    def update(self, ids: list[int], items: Items) -> bool:
        """Starts to compute a map of these items, unless it exists or it is too soon. Returns False while computing.

        Args:
            ids: items to show.
            items: returns the entries of ids, by id, and their vectors (entries, dim).
        """
        if self._thread is not None and self._thread.is_alive():
            return False
        if ids == self._ids or time.monotonic() < self._paused_until:
            return True
        self._ids = ids
        # A daemon thread: the server does not wait for it when it stops.
        self._thread = Thread(target=self._compute, args=(ids, items), daemon=True, name="map")
        self._thread.start()
        return False

    def failure(self) -> Exception | None:
        """The error of the last attempt. Returned once; then `update` tries again."""
        failure, self._failure = self._failure, None
        return failure

    def _compute(self, ids: list[int], items: Items) -> None:
        began = time.monotonic()
        try:
            entries, vectors = items(ids)
            self.points = [
                Point(id=id, x=round(x, 4), y=round(y, 4), label=entry.label)
                for (id, entry), (x, y) in zip(entries.items(), project_2d(vectors).tolist(), strict=True)
            ]
            self._paused_until = time.monotonic() + PAUSE * (time.monotonic() - began)
        except Exception as error:
            if not (self._closed or isinstance(error, UserError)):
                log.exception("the map could not be computed")
            self._ids, self._failure = None, error


def sample_ids(store: Store, count: int) -> list[int]:
    """A random sample of ids: those with the lowest hashes, so that the sample changes little as a gallery grows."""
    ids = np.array(store.ids(len(store)), np.uint64)
    lowest: list[int] = ids[np.argsort(_hashes(ids))[:count]].tolist()
    return lowest


def _hashes(ids: Ids) -> Ids:
    """The last steps of SplitMix64, which map ids to hashes one to one.

    >>> _hashes(np.array([0, 1], np.uint64)).tolist()
    [0, 6238072747940578789]
    """
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        ids = (ids ^ (ids >> np.uint64(shift))) * np.uint64(factor)
    return ids ^ (ids >> np.uint64(31))
