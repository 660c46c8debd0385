"""What the server keeps in memory: answers of the store for some seconds, and thumbnails."""

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

PAUSE = 30  # times as long as a lookup took, the next one is not made
LONGEST_PAUSE = 60.0  # seconds; one slow lookup says little about the next
DECODERS = 2  # processes of their own: uploads keep nobody from seeing the items

T = TypeVar("T")


class TTLCache(Generic[T]):
    """A value that is looked up again after some seconds, by one caller at a time.

    After a slow lookup, also one that failed, it pauses in proportion: lookups must take little of the time of a store
    that searches wait for.

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
    """JPEG bytes, and a tag that changes with the file they were made of."""

    content: bytes
    tag: str


class ThumbnailCache:
    """Thumbnails of files; the ones used last are kept, up to ``max_bytes``."""

    def __init__(self, max_bytes: int = 64 * 2**20) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()
        self._decoders = DecoderPool(DECODERS)

    def close(self) -> None:
        self._decoders.close()

    def get(self, path: Path, side: int) -> Thumbnail:
        """An image that fits a square of ``side`` pixels; raises OSError where the file is gone or unreadable."""
        file = path.stat()  # also for what is kept: a file that is gone is not shown
        seen = f"{path}|{file.st_mtime_ns}|{file.st_size}|{side}"
        tag = hashlib.sha256(seen.encode("utf-8", "surrogateescape")).hexdigest()[:32]
        with self._lock:
            content = self._kept.get(tag)
            if content is not None:
                self._kept.move_to_end(tag)
                return Thumbnail(content, tag)
        content = _jpeg(self._decoders.read_small(path, side), side)
        with self._lock:
            if tag not in self._kept:
                self._kept[tag] = content
                self._bytes += len(content)
            while self._bytes > self._max_bytes:
                self._bytes -= len(self._kept.popitem(last=False)[1])
        return Thumbnail(content, tag)


def _jpeg(image: Image | Unreadable, side: int) -> bytes:
    if isinstance(image, Unreadable):
        raise OSError(image.reason)
    image.thumbnail((side, side))
    encoded = BytesIO()
    image.save(encoded, "JPEG", quality=85)
    return encoded.getvalue()
