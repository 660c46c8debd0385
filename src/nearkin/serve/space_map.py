"""The map of the space: a sample of the gallery in a plane, computed in the background."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Thread

import numpy as np
import numpy.typing as npt

from nearkin.errors import UserError
from nearkin.reports.map import flat_places
from nearkin.search.store import Embeddings, Entry, Store
from nearkin.serve.schemas import Point

log = logging.getLogger(__name__)
PAUSE = 4  # times as long as the last map took, none is drawn: an index that runs beside needs the processor too
Ids = npt.NDArray[np.uint64]
Items = Callable[[list[int]], tuple[dict[int, Entry], Embeddings]]


class SpaceMap:
    """Positions of items, computed in a thread; ``points`` are those last known."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self._ids: list[int] | None = None
        self._failure: Exception | None = None
        self._thread: Thread | None = None
        self._paused_until = 0.0
        self._closed = False

    def close(self) -> None:
        """A map that is being drawn may fail without a word from now on: what it reads from is about to close."""
        self._closed = True

    def update(self, ids: list[int], items: Items) -> bool:
        """Begins to draw these items, unless they are drawn or it pauses; False while some are being drawn.

        Args:
            items: ids -> entries by id, and their vectors (entries, dim).
        """
        if self._thread is not None and self._thread.is_alive():
            return False
        if ids == self._ids or time.monotonic() < self._paused_until:
            return True
        self._ids = ids
        # A daemon: the end of the server does not wait for a map that nobody will see.
        self._thread = Thread(target=self._draw, args=(ids, items), daemon=True, name="map")
        self._thread.start()
        return False

    def failure(self) -> Exception | None:
        """Why the last attempt failed; given once, and then it can begin again."""
        failure, self._failure = self._failure, None
        return failure

    def _draw(self, ids: list[int], items: Items) -> None:
        began = time.monotonic()
        try:
            entries, vectors = items(ids)
            self.points = [
                Point(id=id, x=round(x, 4), y=round(y, 4), label=entry.label)
                for (id, entry), (x, y) in zip(entries.items(), flat_places(vectors).tolist(), strict=True)
            ]
            self._paused_until = time.monotonic() + PAUSE * (time.monotonic() - began)
        except Exception as error:
            if not (self._closed or isinstance(error, UserError)):
                log.exception("the map could not be drawn")
            self._ids, self._failure = None, error


def sample_ids(store: Store, count: int) -> list[int]:
    """Ids drawn evenly and in random order: those with the lowest hash, so that a gallery that grows changes few."""
    ids = np.array(store.ids(len(store)), np.uint64)
    lowest: list[int] = ids[np.argsort(_hashes(ids))[:count]].tolist()
    return lowest


def _hashes(ids: Ids) -> Ids:
    """The last steps of SplitMix64: no two ids share one.

    >>> _hashes(np.array([0, 1], np.uint64)).tolist()
    [0, 6238072747940578789]
    """
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        ids = (ids ^ (ids >> np.uint64(shift))) * np.uint64(factor)
    return ids ^ (ids >> np.uint64(31))
