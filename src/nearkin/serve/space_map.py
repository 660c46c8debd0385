"""The map of the space: where a sample of the gallery lies in a plane, computed beside the page."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Thread

from nearkin.errors import UserError
from nearkin.report.map import flat_places
from nearkin.search.store import Embeddings, Entry
from nearkin.serve.answers import Point

log = logging.getLogger(__name__)
REST = 4  # times as long as the last map took none is drawn: an index that runs beside needs the processor too
Items = Callable[[list[int]], tuple[dict[int, Entry], Embeddings]]


class SpaceMap:
    """Places for items, from a thread of its own: ``points`` are those last known."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self._ids: list[int] | None = None
        self._failure: Exception | None = None
        self._thread: Thread | None = None
        self._rests_until = 0.0

    def follow(self, ids: list[int], items: Items) -> bool:
        """Begins to draw these, unless they are drawn or too little time has passed; False while some are being drawn.

        Args:
            items: ids -> entries by id, and their vectors (entries, dim).
        """
        if self._thread is not None and self._thread.is_alive():
            return False
        if ids == self._ids or time.monotonic() < self._rests_until:
            return True
        self._ids = ids
        # A daemon: the end of the server does not wait for a map that nobody will see.
        self._thread = Thread(target=self._draw, args=(ids, items), daemon=True, name="map")
        self._thread.start()
        return False

    def failure(self) -> Exception | None:
        """Why the last attempt failed; told once, and then it can begin again."""
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
            self._rests_until = time.monotonic() + REST * (time.monotonic() - began)
        except Exception as error:
            if not isinstance(error, UserError):
                log.exception("the map could not be drawn")
            self._ids, self._failure = None, error
