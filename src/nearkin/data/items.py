"""The kinds of things that can be embedded: image files, images in memory, images of an object, feature vectors."""

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
from nearkin.data.pixels import as_picture
from nearkin.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
Indices = npt.NDArray[np.int64]
SAMPLED = 16  # items of an object that stand for all of them in its fingerprint


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

    def picture(self, index: int) -> Image.Image | Unreadable:
        return read_image(self.paths[index])

    def fingerprint(self) -> str:
        """Changes when a file is replaced, appears or vanishes, without reading the files."""
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

    def picture(self, index: int) -> Image.Image:
        return Image.fromarray(self.pixels[index]).convert("RGB")

    def names(self) -> list[str]:
        return [f"#{i}" for i in range(len(self))]

    def fingerprint(self) -> str:
        return _digest([str(self.pixels.shape).encode(), np.ascontiguousarray(self.pixels).data])


@dataclass(frozen=True, eq=False)
class LazyImages:
    """Images that an object gives one at a time: a torch or Hugging Face dataset, a list of pictures.

    They may differ in size. What a random transform of the object draws follows the seed of the batch.

    Attributes:
        source: the object; ``source[row]`` is an item of it.
        key: where in an item the image is: 0 in a pair, the name of a column; None where the item is the image.
        rows: (items,) which of the object's items these are.
        description: the object in words, for messages.
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

    def picture(self, index: int) -> Image.Image:
        row = int(self.rows[index])
        try:
            item = self.source[row]
            return as_picture(item if self.key is None else item[self.key])
        except Exception as error:  # somebody else's code may raise anything
            raise cannot_read(row, self.description, error) from error

    def sample(self, index: int) -> Image.Image:
        """One picture, always the same, leaving everybody's random state untouched."""
        from nearkin.data.transforms import seeded  # imported here because torch is slow to load

        with seeded(0, everything=True):
            return self.picture(index)

    def check(self, index: int) -> None:
        """Raises where an item cannot be read."""
        self.picture(index)

    def fingerprint(self) -> str:
        """Of the number of items and the pixels of some of them; those that are never the same twice do not count."""
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

    def picture(self, index: int) -> Image.Image | Unreadable:
        return self.files.picture(index)

    def fingerprint(self) -> str:
        return self.files.fingerprint()


Images = ImageFiles | ImageArray | LazyImages | DecodedImages
Items = Images | Vectors


def joined(several: Sequence[Items], description: str) -> Items | None:
    """The items of all, one after the other; None where they are of different kinds or shapes.

    ``description``: what they are together, for messages.
    """
    if files := _all_of(ImageFiles, several):
        return ImageFiles([path for each in files for path in each.paths])
    if arrays := _all_of(ImageArray, several):
        same = len({each.pixels.shape[1:] for each in arrays}) == 1
        return ImageArray(np.concatenate([each.pixels for each in arrays])) if same else None
    if vectors := _all_of(Vectors, several):
        same = len({each.values.shape[1] for each in vectors}) == 1
        return Vectors(np.concatenate([each.values for each in vectors])) if same else None
    if lazy := _all_of(LazyImages, several):
        from torch.utils.data import ConcatDataset  # imported here because torch is slow to load

        source: ConcatDataset[Any] = ConcatDataset([each.source for each in lazy])
        rows = [start + each.rows for start, each in zip([0, *source.cumulative_sizes], lazy, strict=False)]
        same = len({each.key for each in lazy}) == 1
        return LazyImages(source, lazy[0].key, np.concatenate(rows), description) if same else None
    return None


def cannot_read(row: int, description: str, error: Exception) -> UserError:
    """The sentence for an object that cannot give one of its items."""
    reason = " ".join(str(error).split())
    reason = reason if type(error) is ValueError and reason else f"{type(error).__name__}: {reason}".rstrip(": ")
    return UserError(f"item {row} of {description} cannot be read ({reason}); mend it or leave it out")


def _all_of(kind: type[T], several: Sequence[Items]) -> list[T]:
    """The items themselves, if all are of this kind; else nothing."""
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
