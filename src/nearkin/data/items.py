"""Kinds of items: image files, images in memory, images read from an object, feature vectors."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from nearkin.data.images import Unreadable, read_image
from nearkin.data.pixels import as_image
from nearkin.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
Indices = npt.NDArray[np.int64]
SAMPLED = 16  # items of an object that its fingerprint covers


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Image files, decoded when they are needed."""

    paths: Sequence[Path]

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, indices: Indices) -> ImageFiles:
        return ImageFiles([self.paths[i] for i in indices])

    def names(self) -> list[str]:
        return [str(path) for path in self.paths]

    def image(self, index: int) -> Image.Image | Unreadable:
        return read_image(self.paths[index])

    def fingerprint(self) -> str:
        """Changes when a file is added, replaced or removed; does not read the files."""
        return _digest(os.fsencode(_state_of(path)) for path in self.paths)


@dataclass(frozen=True, eq=False)
class ImageArray:
    """Images in memory, (items, height, width) grey or (items, height, width, 3) RGB, uint8."""

    pixels: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def channels(self) -> int:
        return 1 if self.pixels.ndim == 3 else 3

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        height, width = self.pixels.shape[1:3]
        return width, height

    def take(self, indices: Indices) -> ImageArray:
        return ImageArray(self.pixels[indices])

    def image(self, index: int) -> Image.Image:
        return Image.fromarray(self.pixels[index]).convert("RGB")

    def names(self) -> list[str]:
        return [f"#{i}" for i in range(len(self))]

    def fingerprint(self) -> str:
        return _digest([str(self.pixels.shape).encode(), np.ascontiguousarray(self.pixels).data])


@dataclass(frozen=True, eq=False)
class LazyImages:
    """Images read one at a time from an object: a torch or Hugging Face dataset, or a list of images.

    They may differ in size. The seed of the batch also seeds random transforms of the object.

    Attributes:
        source: the object; ``source[row]`` is one of its items.
        key: position of the image in an item: 0 in a pair, or a column name; None if the item is the image.
        rows: (items,) indices into the object.
        description: names the object in messages.
    """

    source: Any
    key: int | str | None
    rows: Indices
    description: str

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the first image."""
        return self.sample(0).size

    def take(self, indices: Indices) -> LazyImages:
        return replace(self, rows=self.rows[indices])

    def names(self) -> list[str]:
        return [f"#{row}" for row in self.rows]

    def image(self, index: int) -> Image.Image:
        row = int(self.rows[index])
        try:
            item = self.source[row]
            return as_image(item if self.key is None else item[self.key])
        except Exception as error:  # other libraries may raise anything
            raise cannot_read(row, self.description, error) from error

    def sample(self, index: int) -> Image.Image:
        """Returns one image with a fixed seed; leaves all random states unchanged."""
        from nearkin.data.transforms import seeded  # here: torch is slow to import

        with seeded(0, everything=True):
            return self.image(index)

    def check(self, index: int) -> None:
        """Raises if the item cannot be read."""
        self.image(index)

    def fingerprint(self) -> str:
        """Covers the rows and the pixels of some items, except those that differ each time they are read."""
        chosen = np.unique(np.linspace(0, len(self) - 1, min(SAMPLED, len(self))).astype(int))
        twice = ((self.sample(n).tobytes(), self.sample(n).tobytes()) for n in chosen)
        return _digest([self.rows.tobytes(), *(one for one, two in twice if one == two)])


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
    """Image files decoded to squares on the training device, where batches are cropped from them.

    Attributes:
        files: the image files.
        squares: (all images of a run, channels, side, side) uint8.
        rows: (items,) indices into ``squares``.
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

    def image(self, index: int) -> Image.Image | Unreadable:
        return self.files.image(index)

    def fingerprint(self) -> str:
        return self.files.fingerprint()


Images = ImageFiles | ImageArray | LazyImages | DecodedImages
Items = Images | Vectors


def concatenate_items(several: Sequence[Items], description: str) -> Items | None:
    """Concatenates items; returns None if they differ in kind or shape. ``description`` names them in messages."""
    if files := _all_of(ImageFiles, several):
        return ImageFiles([path for each in files for path in each.paths])
    if arrays := _all_of(ImageArray, several):
        same = len({each.pixels.shape[1:] for each in arrays}) == 1
        return ImageArray(np.concatenate([each.pixels for each in arrays])) if same else None
    if vectors := _all_of(Vectors, several):
        same = len({each.values.shape[1] for each in vectors}) == 1
        return Vectors(np.concatenate([each.values for each in vectors])) if same else None
    if lazy := _all_of(LazyImages, several):
        from torch.utils.data import ConcatDataset  # here: torch is slow to import

        source: ConcatDataset[Any] = ConcatDataset([each.source for each in lazy])
        rows = [start + each.rows for start, each in zip([0, *source.cumulative_sizes], lazy, strict=False)]
        same = len({each.key for each in lazy}) == 1
        return LazyImages(source, lazy[0].key, np.concatenate(rows), description) if same else None
    return None


def cannot_read(row: int, description: str, error: Exception) -> UserError:
    """The error for an item that an object fails to return."""
    reason = " ".join(str(error).split())
    reason = reason if type(error) is ValueError and reason else f"{type(error).__name__}: {reason}".rstrip(": ")
    return UserError(f"item {row} of {description} cannot be read ({reason}); fix it or leave it out")


def _all_of(kind: type[T], several: Sequence[Items]) -> list[T]:
    """Returns the items if all are of this kind, else an empty list."""
    found: list[T] = [each for each in several if isinstance(each, kind)]
    return found if len(found) == len(several) else []


def _digest(chunks: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def _state_of(path: Path) -> str:
    try:
        stat = path.stat()
    except OSError:
        return f"{path}|missing"
    return f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}"
