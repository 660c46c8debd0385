"""What a backbone made of an item, computed once and kept on disk for every command, run and gallery that asks again.

One SQLite file for each backbone with its weights, one row for each item. A file is known by its path, size and time of
change, an image in memory by its pixels. Rows computed in another batch may differ in their last digits.
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
from nearkin.errors import OutOfRoom, UserError
from nearkin.files import cache_folder, one_at_a_time
from nearkin.models.model import EmbeddingModel, device_of

log = logging.getLogger("nearkin")

FORMAT = 1
KEPT_AFTER = 5.0  # seconds after which computed rows are written
WAIT = 30.0  # seconds, for another process that is just writing
GIGABYTES = 10.0  # of all files together; NEARKIN_CACHE_GB says otherwise
TABLE = (
    "CREATE TABLE IF NOT EXISTS features"
    " (item BLOB PRIMARY KEY, size INTEGER NOT NULL, modified INTEGER NOT NULL, row BLOB NOT NULL)"
)

Key = tuple[bytes, int, int]
"""Which item, and for files their size and time of change in nanoseconds."""


class FeatureCache:
    """The rows of one backbone. Where they cannot be read or written, work goes on without, after one warning.

    Without ``active`` it knows nothing and keeps nothing; nor does it for a user's own code, which may change.

    >>> with FeatureCache(model) as rows:  # doctest: +SKIP
    ...     found = rows.get([file_key(Path("a.jpg"))])
    """

    def __init__(self, model: EmbeddingModel, active: bool = True) -> None:
        self._row_bytes = 4 * model.width
        self._pending: list[tuple[bytes, int, int, bytes]] = []
        self._written = time.monotonic()
        self._database: sqlite3.Connection | None = None
        if not active or not model.versioned or (limit := _most_bytes()) == 0:
            return
        self._folder = cache_folder() / "features"
        self._file = self._folder / f"{_fingerprint(model)}.sqlite"
        with self._or_without():
            self._folder.mkdir(parents=True, exist_ok=True)
            if not self._file.exists():
                _make_room(self._folder, limit)
            self._database = sqlite3.connect(self._file, WAIT)
            self._database.execute(TABLE)
            with suppress(OSError):  # of a folder that can only be read
                os.utime(self._file)

    def get(self, keys: Sequence[Key | None]) -> tuple[list[int], Tensor]:
        """The places of the keys whose rows are known, and these rows (known, width)."""
        places, rows = [], bytearray()
        if self._database is not None:
            with self._or_without():
                question = "SELECT row FROM features WHERE item = ? AND size = ? AND modified = ?"
                for place, key in enumerate(keys):
                    answer = key and self._database.execute(question, key).fetchone()
                    if answer and len(answer[0]) == self._row_bytes:
                        places.append(place)
                        rows += answer[0]
        shape = (len(places), self._row_bytes // 4)
        return places, torch.from_numpy(np.frombuffer(rows, dtype=np.float32).reshape(shape))

    def add(self, keys: Sequence[Key | None], rows: Tensor) -> None:
        """Keeps rows (keys, width); they are written every few seconds, and at the end."""
        if self._database is None:
            return
        self._pending += [(*key, row.tobytes()) for key, row in zip(keys, rows.numpy(), strict=True) if key is not None]
        if time.monotonic() - self._written >= KEPT_AFTER:
            self._write()

    @contextmanager
    def alone(self, keys: Sequence[Key | None]) -> Iterator[None]:
        """Of several processes that lack the rows of the same items, one computes them; the others wait for it."""
        with ExitStack() as stack:
            if self._database is not None:
                name = f"{self._file.stem}-{hashlib.sha256(repr(keys).encode()).hexdigest()[:16]}"
                try:
                    stack.enter_context(one_at_a_time(self._folder / name))
                except OutOfRoom as error:
                    _warn(str(error))
            stack.callback(self._write)  # before the others go on
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
        """A cache that fails costs time, never the work itself."""
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
    """What items are known by; None for those that are not kept, such as vectors: they are as soon computed as read."""
    if isinstance(items, ImageFiles | DecodedImages):
        return [file_key(path) for path in items.paths]
    if isinstance(items, ImageArray):
        shape = repr(items.pixels.shape[1:]).encode()
        return [(hashlib.sha256(shape + pixels.tobytes()).digest(), 0, 0) for pixels in items.pixels]
    return [None] * len(items)


def file_key(path: Path) -> Key | None:
    """None where there is no such file. Ask before the file is read: should it change then, its row is not found."""
    try:
        state = path.stat()
        return os.fsencode(path.resolve()), state.st_size, state.st_mtime_ns
    except OSError:
        return None


def _fingerprint(model: EmbeddingModel) -> str:
    """Of everything that a row follows from besides its item."""
    versions = (torch.__version__, PIL.__version__, version("timm"), version("torchvision"))
    said = (FORMAT, model.spec.backbone, model.spec.preprocess, device_of(model).type, versions)
    digest = hashlib.sha256(repr(said).encode())
    for part in (model.standardise, model.backbone):
        for name, tensor in part.state_dict().items():
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.cpu().contiguous().numpy().data)
    return digest.hexdigest()


def _most_bytes() -> float:
    wanted = os.environ.get("NEARKIN_CACHE_GB", str(GIGABYTES))
    try:
        limit = float(wanted)
    except ValueError:
        limit = math.nan
    if not limit >= 0:
        raise UserError(f"NEARKIN_CACHE_GB={wanted} must be a number of gigabytes, such as 10, or 0 for no cache")
    return limit * 1e9


def _make_room(folder: Path, limit: float) -> None:
    """Removes the files that were used longest ago, beyond the limit."""
    found: list[tuple[float, int, Path]] = []
    for file in folder.iterdir():
        with suppress(FileNotFoundError):  # another process makes room too
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
