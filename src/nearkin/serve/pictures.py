"""The gallery's pictures as a browser gets them: made smaller, encoded anew, and kept in memory for the next time."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from threading import Lock

from nearkin.data.images import Unreadable, read_small


@dataclass(frozen=True)
class SmallPicture:
    """JPEG bytes, and a tag that changes with the file they were made of."""

    content: bytes
    tag: str


class Pictures:
    """Small pictures of files; the ones asked for last are kept, up to so many bytes."""

    def __init__(self, most_bytes: int = 64 * 2**20) -> None:
        self._most = most_bytes
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def get(self, path: Path, side: int) -> SmallPicture:
        """A picture that fits a square of ``side`` pixels; raises OSError where the file is gone or unreadable."""
        file = path.stat()  # also for what is kept: a file that is gone is not shown
        seen = f"{path}|{file.st_mtime_ns}|{file.st_size}|{side}"
        tag = hashlib.sha256(seen.encode("utf-8", "surrogateescape")).hexdigest()[:32]
        with self._lock:
            content = self._kept.get(tag)
            if content is not None:
                self._kept.move_to_end(tag)
                return SmallPicture(content, tag)
        content = _small(path, side)
        with self._lock:
            if tag not in self._kept:
                self._kept[tag] = content
                self._bytes += len(content)
            while self._bytes > self._most:
                self._bytes -= len(self._kept.popitem(last=False)[1])
        return SmallPicture(content, tag)


def _small(path: Path, side: int) -> bytes:
    picture = read_small(path, side)
    if isinstance(picture, Unreadable):
        raise OSError(picture.reason)
    picture.thumbnail((side, side))
    encoded = BytesIO()
    picture.save(encoded, "JPEG", quality=85)
    return encoded.getvalue()
