"""The map of the space: where a sample of the gallery lies in a plane, computed beside the page."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Thread

import numpy as np
import numpy.typing as npt

from nearkin.errors import UserError
from nearkin.report.map import flat_places
from nearkin.search.store import Embeddings, Entry
from nearkin.serve.answers import Point

log = logging.getLogger(__name__)
Places = npt.NDArray[np.float64]
Items = Callable[[list[int]], tuple[dict[int, Entry], Embeddings]]


class SpaceMap:
    """Places for items, from a thread of its own: ``points`` is None until they are first known."""

    def __init__(self) -> None:
        self.points: list[Point] | None = None
        self._ids: list[int] | None = None
        self._failure: Exception | None = None
        self._thread: Thread | None = None

    def follow(self, ids: list[int], items: Items) -> None:
        """Begins to draw these, unless they are drawn already or others are being drawn.

        Args:
            items: ids -> entries by id, and their vectors (entries, dim).
        """
        if ids != self._ids and (self._thread is None or not self._thread.is_alive()):
            self._ids = ids
            # A daemon: the end of the server does not wait for a map that nobody will see.
            self._thread = Thread(target=self._draw, args=(ids, items), daemon=True, name="map")
            self._thread.start()

    def failure(self) -> Exception | None:
        """Why the last attempt failed; told once, and then it can begin again."""
        failure, self._failure = self._failure, None
        return failure

    def _draw(self, ids: list[int], items: Items) -> None:
        try:
            entries, vectors = items(ids)
            self.points = [
                Point(id=id, x=round(x, 4), y=round(y, 4), label=entry.label)
                for (id, entry), (x, y) in zip(entries.items(), lay_out(vectors).tolist(), strict=True)
            ]
        except Exception as error:
            if not isinstance(error, UserError):
                log.exception("the map could not be drawn")
            self._ids, self._failure = None, error


def lay_out(vectors: Embeddings) -> Places:
    """(items, dim) -> (items, 2) in the unit square: t-SNE, or where it has too little to go by, the main directions.

    >>> lay_out(np.array([[0, 0], [3, 0]], dtype=np.float32)).tolist()
    [[0.0, 0.5], [1.0, 0.5]]
    """
    if vectors.shape[1] >= 2 and len(np.unique(vectors, axis=0)) > 4:
        return flat_places(vectors)
    centred = vectors.astype(np.float64) - vectors.mean(axis=0) if len(vectors) else np.zeros((0, 2))
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    flat = np.zeros((len(vectors), 2))
    flat[:, : len(directions[:2])] = centred @ directions[:2].T
    low, high = flat.min(axis=0, initial=np.inf), flat.max(axis=0, initial=-np.inf)
    return np.where(high - low > 1e-9, (flat - low) / np.maximum(high - low, 1e-9), 0.5)
