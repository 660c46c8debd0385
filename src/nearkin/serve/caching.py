"""In-memory caches: query results of the store, for some seconds, and thumbnails."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import Generic, TypeVar

from fastapi import HTTPException
from PIL.Image import Image

from nearkin.data.decoders import DecoderPool
from nearkin.data.images import Unreadable

PAUSE = 30  # minimum time between lookups, as a multiple of the time that the last one took
LONGEST_PAUSE = 60.0  # seconds; after one slow lookup the next may be fast
DECODERS = 2  # processes; separate from those of uploads, so that uploads do not delay thumbnails

T = TypeVar("T")


class TTLCache(Generic[T]):
    """A value that is looked up again after some seconds, by one caller at a time.

    After a slow or failed lookup it waits longer, in proportion to the time that the lookup took. Otherwise lookups
    would keep a slow store from answering searches.

    >>> async def twice() -> tuple[float, float]:
    ...     now = TTLCache(lambda: asyncio.sleep(0, time.monotonic()), seconds=60)
    ...     return await now(), await now()
    >>> first, second = asyncio.run(twice())
    >>> first == second
    True
    """

    def __init__(self, look_up: Callable[[], Awaitable[T]], seconds: float) -> None:
        self._look_up, self._seconds = look_up, seconds
        self._outcome: T | HTTPException
        self._expires = 0.0
        self._lock = asyncio.Lock()

    async def __call__(self) -> T:
        async with self._lock:
            if time.monotonic() >= self._expires:
                await self._refresh()
        if isinstance(self._outcome, HTTPException):
            raise self._outcome
        return self._outcome

    async def _refresh(self) -> None:
        began, seconds = time.monotonic(), self._seconds
        try:
            self._outcome = await self._look_up()
        except HTTPException as error:
            self._outcome, seconds = error, 0.0
        ended = time.monotonic()
        self._expires = ended + max(seconds, min(PAUSE * (ended - began), LONGEST_PAUSE))


@dataclass(frozen=True)
class Thumbnail:
    """JPEG bytes, and a tag that changes whenever the source file changes."""

    content: bytes
    tag: str


class ThumbnailCache:
    """Thumbnails of image files: a least-recently-used cache of at most ``max_bytes``."""

    def __init__(self, max_bytes: int = 64 * 2**20) -> None:
        self._max_bytes = max_bytes
        self._cached: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()
        self._decoders = DecoderPool(DECODERS)

    def close(self) -> None:
        self._decoders.close()

    def get(self, path: Path, side: int) -> Thumbnail:
        """The image, resized to fit a square of ``side`` pixels; OSError if the file is missing or unreadable."""
        file = path.stat()  # also for cached thumbnails: deleted files are not shown
        version = f"{path}|{file.st_mtime_ns}|{file.st_size}|{side}"
        tag = hashlib.sha256(version.encode("utf-8", "surrogateescape")).hexdigest()[:32]
        with self._lock:
            content = self._cached.get(tag)
            if content is not None:
                self._cached.move_to_end(tag)
                return Thumbnail(content, tag)
        content = _jpeg(self._decoders.read_small(path, side), side)
        with self._lock:
            if tag not in self._cached:
                self._cached[tag] = content
                self._bytes += len(content)
            while self._bytes > self._max_bytes:
                self._bytes -= len(self._cached.popitem(last=False)[1])
        return Thumbnail(content, tag)


def _jpeg(image: Image | Unreadable, side: int) -> bytes:
    if isinstance(image, Unreadable):
        raise OSError(image.reason)
    image.thumbnail((side, side))
    encoded = BytesIO()
    image.save(encoded, "JPEG", quality=85)
    return encoded.getvalue()
