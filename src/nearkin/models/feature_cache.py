"""A cache on disk for backbone features, shared by all commands, runs and galleries.

It has one SQLite file per backbone and weights, with one row per item. The key of a file is its path, size and
modification time; the key of an image in memory is a hash of its pixels. The last digits of features may depend on the
batch they were computed in.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Self

import numpy as np
import PIL
import torch
from torch import Tensor

from nearkin.data.items import DecodedImages, ImageArray, ImageFiles, Items
from nearkin.data.transforms import PIXELS_VERSION
from nearkin.errors import ResourceError, UserError
from nearkin.files import cache_folder, one_at_a_time
from nearkin.models.model import EmbeddingModel, device_of

log = logging.getLogger("nearkin")

FORMAT = 1
WRITE_SECONDS = 5.0  # between two writes
WAIT_SECONDS = 30.0  # for another process that is writing
GIGABYTES = 10.0  # default of NEARKIN_CACHE_GB: maximum size of all files together
TABLE = (
    "CREATE TABLE IF NOT EXISTS features"
    " (item BLOB PRIMARY KEY, size INTEGER NOT NULL, modified INTEGER NOT NULL, row BLOB NOT NULL)"
)

Key = tuple[bytes, int, int]
"""Path or hash, then size and modification time in nanoseconds; 0 for images in memory."""


class FeatureCache:
    """Cached features of one backbone. If the cache cannot be read or written, it warns once and stays empty.

    It also stays empty if ``active`` is False, and for a user's own module, whose code may change.

    >>> with FeatureCache(model) as rows:  # doctest: +SKIP
    ...     found = rows.get([file_key(Path("a.jpg"))])
    """

    def __init__(self, model: EmbeddingModel, active: bool = True) -> None:
        self._row_bytes = 4 * model.width
        self._pending: list[tuple[bytes, int, int, bytes]] = []
        self._written = time.monotonic()
        self._database: sqlite3.Connection | None = None
        if not active or not model.versioned or (limit := _max_bytes()) == 0:
            return
        self._folder = cache_folder() / "features"
        self._file = self._folder / f"{_fingerprint(model)}.sqlite"
        with self._or_without():
            self._folder.mkdir(parents=True, exist_ok=True)
            if not self._file.exists():
                _make_room(self._folder, limit)
            self._database = sqlite3.connect(self._file, WAIT_SECONDS)
            self._database.execute(TABLE)
            with suppress(OSError):  # the folder may be read-only
                os.utime(self._file)

    def get(self, keys: Sequence[Key | None]) -> tuple[list[int], Tensor]:
        """The indices of the keys that are cached, and their features (cached, width)."""
        indices, rows = [], bytearray()
        if self._database is not None:
            with self._or_without():
                query = "SELECT row FROM features WHERE item = ? AND size = ? AND modified = ?"
                for index, key in enumerate(keys):
                    found = key and self._database.execute(query, key).fetchone()
                    if found and len(found[0]) == self._row_bytes:
                        indices.append(index)
                        rows += found[0]
        shape = (len(indices), self._row_bytes // 4)
        return indices, torch.from_numpy(np.frombuffer(rows, dtype=np.float32).reshape(shape))

    def add(self, keys: Sequence[Key | None], rows: Tensor) -> None:
        """Adds features (keys, width). They are written every few seconds, and at the end."""
        if self._database is None:
            return
        self._pending += [(*key, row.tobytes()) for key, row in zip(keys, rows.numpy(), strict=True) if key is not None]
        if time.monotonic() - self._written >= WRITE_SECONDS:
            self._write()

    @contextmanager
    def alone(self, keys: Sequence[Key | None]) -> Iterator[None]:
        """A lock: if several processes need features of the same items, one computes them and the others wait."""
        with ExitStack() as stack:
            if self._database is not None:
                name = f"{self._file.stem}-{hashlib.sha256(repr(keys).encode()).hexdigest()[:16]}"
                try:
                    stack.enter_context(one_at_a_time(self._folder / name))
                except ResourceError as error:
                    _warn(str(error))
            stack.callback(self._write)  # before the lock is released
            yield

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._write()
        if self._database is not None:
            self._database.close()

    def _write(self) -> None:
        if self._database is not None and self._pending:
            with self._or_without(), self._database:
                self._database.executemany("INSERT OR REPLACE INTO features VALUES (?, ?, ?, ?)", self._pending)
        self._pending.clear()
        self._written = time.monotonic()

    @contextmanager
    def _or_without(self) -> Iterator[None]:
        """If the cache fails, continue without it."""
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            _warn(f"{self._file}: {error}")
            if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
                with suppress(OSError):  # damaged: the next one to ask begins a new file
                    self._file.unlink()
            if self._database is not None:
                self._database.close()
                self._database = None


def item_keys(items: Items) -> list[Key | None]:
    """The cache keys of items; None for items that are not cached, such as vectors, which are as fast to compute."""
    if isinstance(items, ImageFiles | DecodedImages):
        return [file_key(path) for path in items.paths]
    if isinstance(items, ImageArray):
        shape = repr(items.pixels.shape[1:]).encode()
        return [(hashlib.sha256(shape + pixels.tobytes()).digest(), 0, 0) for pixels in items.pixels]
    return [None] * len(items)


def file_key(path: Path) -> Key | None:
    """The cache key of a file; None if it does not exist.

    Call it before the file is read: if the file changes in between, the cached row is never found.
    """
    try:
        state = path.stat()
        return os.fsencode(path.resolve()), state.st_size, state.st_mtime_ns
    except OSError:
        return None


def _fingerprint(model: EmbeddingModel) -> str:
    """A hash of everything that features depend on, except the item."""
    versions = (torch.__version__, PIL.__version__, version("timm"), version("torchvision"))
    settings = (FORMAT, PIXELS_VERSION, model.spec.backbone, model.spec.preprocess, device_of(model).type, versions)
    digest = hashlib.sha256(repr(settings).encode())
    for part in (model.standardise, model.backbone):
        for name, tensor in part.state_dict().items():
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.cpu().contiguous().numpy().data)
    return digest.hexdigest()


def _max_bytes() -> float:
    value = os.environ.get("NEARKIN_CACHE_GB", str(GIGABYTES))
    try:
        limit = float(value)
    except ValueError:
        limit = math.nan
    if not limit >= 0:
        raise UserError(f"NEARKIN_CACHE_GB must be a number of gigabytes, such as 10, or 0 for no cache, got {value}")
    return limit * 1e9


def _make_room(folder: Path, limit: float) -> None:
    """Removes the least recently used files until the others fit into the limit."""
    found: list[tuple[float, int, Path]] = []
    for file in folder.iterdir():
        with suppress(FileNotFoundError):  # another process may be removing files too
            state = file.stat()
            found.append((state.st_mtime, state.st_size, file))
    total = 0
    for _, size, file in sorted(found, reverse=True):
        total += size
        if total > limit:
            file.unlink(missing_ok=True)


@cache
def _warn(reason: str) -> None:
    log.warning("cannot cache features (%s); continuing without the cache", reason)
