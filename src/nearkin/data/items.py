"""The kinds of things that can be embedded: image files, images in memory, decoded files, feature vectors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Images on disk, decoded when they are needed."""

    paths: Sequence[Path]

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, indices: Indices) -> ImageFiles:
        return ImageFiles([self.paths[i] for i in indices])

    def names(self) -> list[str]:
        return [str(path) for path in self.paths]

    def fingerprint(self) -> str:
        """Changes when a file is replaced, appears or vanishes, without reading the files."""
        return _digest(_state_of(path).encode() for path in self.paths)


@dataclass(frozen=True, eq=False)
class ImageArray:
    """Images in memory, (items, height, width) grey or (items, height, width, 3) RGB, uint8."""

    pixels: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def channels(self) -> int:
        return 1 if self.pixels.ndim == 3 else 3

    def take(self, indices: Indices) -> ImageArray:
        return ImageArray(self.pixels[indices])

    def names(self) -> list[str]:
        return [f"#{i}" for i in range(len(self))]

    def fingerprint(self) -> str:
        return _digest([str(self.pixels.shape).encode(), np.ascontiguousarray(self.pixels).data])


@dataclass(frozen=True, eq=False)
class Vectors:
    """Feature vectors in memory, (items, features) float32."""

    values: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.values)

    def take(self, indices: Indices) -> Vectors:
        return Vectors(self.values[indices])

    def names(self) -> list[str]:
        return [f"#{i}" for i in range(len(self))]

    def fingerprint(self) -> str:
        return _digest([str(self.values.shape).encode(), np.ascontiguousarray(self.values).data])


@dataclass(frozen=True, eq=False)
class DecodedImages:
    """Image files as squares on the device that trains, of which batches are cut there.

    Attributes:
        files: where they come from.
        squares: (all images of a run, channels, side, side) uint8.
        rows: (items,) which of them these are.
    """

    files: ImageFiles
    squares: Tensor
    rows: Indices

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def paths(self) -> Sequence[Path]:
        return self.files.paths

    def take(self, indices: Indices) -> DecodedImages:
        return DecodedImages(self.files.take(indices), self.squares, self.rows[indices])

    def names(self) -> list[str]:
        return self.files.names()

    def fingerprint(self) -> str:
        return self.files.fingerprint()


Items = ImageFiles | ImageArray | DecodedImages | Vectors


def _digest(parts: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _state_of(path: Path) -> str:
    try:
        stat = path.stat()
    except OSError:
        return f"{path}|missing"
    return f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}"
