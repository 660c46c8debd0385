"""Turns what `encode` takes (paths, Pillow images, arrays or tensors, one or many) into batches for the network.

An item is one image or one vector. Arrays are (height, width[, channels]), tensors (channels, height, width) or
(height, width), each with an optional first dimension for the batch. An image in memory that has the model's input size
is used as it is. Otherwise it is resized like a file if it is uint8, and refused if it is floating point.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from nearkin.data.images import Unreadable, read_image, to_rgb
from nearkin.data.items import ImageFiles, Items, Vectors
from nearkin.data.loader import input_batches, sequential
from nearkin.data.transforms import Preprocess, make_transform
from nearkin.errors import UserError

Array = npt.NDArray[Any]
Item = str | Path | Image.Image | Array | Tensor
Encodable = Item | Sequence[Item] | Sequence[float] | Items

CHANNELS = (1, 3, 4)  # grey, RGB, RGBA
RANGE = (-0.5, 1.5)  # of pixels in 0…1, plus overshoot of bicubic resizing; standardised pixels exceed it


@dataclass(frozen=True)
class Inputs:
    """``count`` items as batches (batch, channels, size, size) or (batch, features).

    ``single``: whether the input was one item, not a list of one.
    """

    batches: Iterator[Tensor]
    count: int
    single: bool


def read_inputs(data: Encodable, preprocess: Preprocess | None, batch_size: int, workers: int | None = None) -> Inputs:
    """Inputs for a model that takes images, or vectors if ``preprocess`` is None.

    Images are read lazily, batch by batch.

    >>> read_inputs([[1.0, 2.0], [3.0, 4.0]], None, batch_size=8).count
    2
    """
    if batch_size < 1 or (workers or 0) < 0:
        raise UserError(f"batch_size must be >= 1 and workers >= 0, got {batch_size} and {workers}")
    items, single = _items(data, preprocess)
    if isinstance(items, Items):
        if isinstance(items, ImageFiles) and len(items) <= batch_size and workers is None:
            workers = 0  # a single batch is not worth a process
        batches = input_batches(items, preprocess, sequential(len(items), batch_size), workers=workers)
    else:
        assert preprocess is not None
        batches = _image_batches(items, preprocess, batch_size)
    return Inputs(batches, len(items), single)


def _items(data: Any, preprocess: Preprocess | None) -> tuple[Any, bool]:
    """nearkin's own `Items`, or a sequence of images; and whether the input was one item."""
    if isinstance(data, Items):
        return data, False
    if hasattr(data, "__array__") and not isinstance(data, Tensor | Image.Image):  # for example a column of a table
        data = np.asarray(data)
        data = data.tolist() if data.dtype.kind in "OU" else data
    if preprocess is None:
        return _vectors(data)
    if single := _is_one_image(data):
        data = data[None] if isinstance(data, np.ndarray | Tensor) else [data]
    elif isinstance(data, bytes | Mapping) or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise UserError(
            f"items must be one item or a list, got {type(data).__name__}; for an iterator, use encode(list(items))"
        )
    if len(data) and isinstance(data[0], str | Path) and all(isinstance(item, str | Path) for item in data):
        return ImageFiles([Path(item).expanduser() for item in data]), single
    return data, single


def _vectors(data: Any) -> tuple[Vectors, bool]:
    try:
        values = np.asarray(_numpy(data) if isinstance(data, np.ndarray | Tensor) else [_numpy(each) for each in data])
    except (TypeError, ValueError):  # not a sequence, or vectors of different lengths
        raise _not_vectors(type(data).__name__) from None
    if values.shape == (0,):
        return Vectors(np.empty((0, 0), np.float32)), False
    if values.dtype.kind not in "bfiu":
        raise _not_vectors("text" if values.dtype.kind == "U" else str(values.dtype))
    if values.ndim not in (1, 2):
        raise _not_vectors(str(values.shape))
    single, values = values.ndim == 1, np.atleast_2d(values).astype(np.float32)
    if len(invalid := np.flatnonzero(~np.isfinite(values).all(axis=1))):
        raise UserError(
            f"{len(invalid)} of {len(values)} vectors contain NaN or infinity, first in row {invalid[0]}; remove them"
        )
    return Vectors(values), single


def _not_vectors(what: str) -> UserError:
    return UserError(f"this model takes feature vectors, numbers of shape (features,) or (n, features), got {what}")


def _numpy(each: Any) -> Any:
    if not isinstance(each, Tensor):
        return each
    # NumPy has no bfloat16.
    return (each.float() if each.dtype == torch.bfloat16 else each).detach().cpu().numpy()


def _is_one_image(data: Any) -> bool:
    if not isinstance(data, np.ndarray | Tensor):
        return isinstance(data, str | Path | Image.Image)
    if data.ndim == 3 and data.shape[0 if isinstance(data, Tensor) else -1] in CHANNELS:
        return True
    channels_last = isinstance(data, Tensor) and data.ndim == 3 and data.shape[-1] in CHANNELS
    if data.ndim not in (2, 3, 4) or channels_last:
        raise _not_an_image(data)
    return data.ndim == 2


def _image_batches(images: Any, preprocess: Preprocess, batch_size: int) -> Iterator[Tensor]:
    transform = make_transform(preprocess)

    def square(index: int) -> Tensor:
        """(channels, size, size), uint8 or pixels in 0…1."""
        item = images[index]
        if isinstance(item, np.ndarray | Tensor):
            item = _pixels(item, preprocess)
            if isinstance(item, Tensor):
                return item
        elif isinstance(item, str | Path):
            item = read_image(Path(item).expanduser(), preprocess.resize)
            if isinstance(item, Unreadable):
                raise UserError(f"{item}; check this file or leave it out")
        elif not isinstance(item, Image.Image):
            raise UserError(
                f"item {index} is a {type(item).__name__}; use a path, a Pillow image, an array or a tensor"
            )
        try:
            return transform(to_rgb(item))
        except Exception as error:  # Pillow opens images lazily, so a damaged one fails only here
            raise UserError(f"image {index} cannot be decoded ({error}); fix it or leave it out") from error

    for start in range(0, len(images), batch_size):
        squares = [square(index) for index in range(start, min(start + batch_size, len(images)))]
        if any(each.is_floating_point() for each in squares):
            squares = [each if each.is_floating_point() else each / 255 for each in squares]
        yield torch.stack(squares)


def _pixels(image: Array | Tensor, preprocess: Preprocess) -> Tensor | Image.Image:
    """An image in memory: a tensor if it has the model's input size, otherwise a Pillow image to be resized."""
    if not _is_one_image(image):
        raise _not_an_image(image)
    if isinstance(image, Tensor):
        image = _numpy(image if image.ndim == 2 else image.permute(1, 2, 0))
    assert isinstance(image, np.ndarray)
    if image.ndim == 3 and image.shape[-1] == 1:
        image = image[..., 0]
    side = preprocess.size
    fits = image.shape == ((side, side) if preprocess.channels == 1 else (side, side, 3))
    if image.dtype == np.uint8:
        return torch.from_numpy(_channels_first(image)) if fits else Image.fromarray(image)
    if image.dtype.kind != "f":
        raise UserError(f"images must be uint8 (0…255) or floating point (0…1), got {image.dtype}")
    if not fits:
        raise UserError(
            f"floating-point images must have the model's input size, {side} × {side} pixels and "
            f"{preprocess.channels} channels, got {image.shape}; uint8 images are resized for you"
        )
    if not (image.min() >= RANGE[0] and image.max() <= RANGE[1]):  # also for NaN
        raise UserError(
            f"floating-point images must be in 0…1, got {image.min():.3g}…{image.max():.3g}; "
            "do not standardise them (the model does), or use uint8"
        )
    return torch.from_numpy(_channels_first(image).astype(np.float32))


def _channels_first(image: Array) -> Array:
    return np.array(np.moveaxis(np.atleast_3d(image), -1, 0))  # a copy in this order


def _not_an_image(found: Array | Tensor) -> UserError:
    kind, layout = ("tensor", "3, height, width") if isinstance(found, Tensor) else ("array", "height, width, 3")
    return UserError(f"an image {kind} must have shape ({layout}) or (height, width), got {tuple(found.shape)}")
