"""Datasets from arrays: items and labels in memory, or a NumPy ``.npz`` file with both and further columns."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from nearkin.data.archive import Header, read_archive
from nearkin.data.dataset import Dataset, class_labels, describe_object
from nearkin.data.items import ImageArray, ImageFiles, Items, LazyImages, Vectors
from nearkin.data.pixels import Array, as_array, channels_last, eight_bit
from nearkin.errors import UserError

# The columns of an .npz that a dataset uses, their types, and the kinds of arrays that can be converted to them.
COLUMNS = {"split": np.str_, "is_query": np.bool_, "is_gallery": np.bool_}
KINDS = {"split": "SU", "is_query": "biu", "is_gallery": "biu"}


def from_arrays(items: Any, labels: Any, name: str = "arrays") -> Dataset:
    """Makes a dataset from items and labels in memory: arrays, tensors or lists.

    Args:
        items: vectors (n, features), or images: (n, h, w), (n, h, w, 3), (n, 1, h, w) or (n, 3, h, w), uint8 or
            floating point in 0…1; or a list of paths, or of images of any sizes.
        labels: (n,) integers or strings.
        name: what to call the dataset in tables and messages.

    >>> data = from_arrays([[0.5, 1.0], [0.0, 2.0]], ["cat", "dog"])
    >>> data.items.values.shape, data.classes
    ((2, 2), ['cat', 'dog'])
    """
    if not hasattr(items, "__len__") or not len(items):
        raise UserError("(X, y) has no items; X and y need one entry per item")
    codes, classes = class_labels(labels, "(X, y)")
    if len(codes) != len(items):
        raise UserError(f"(X, y) has {len(codes):,} labels for {len(items):,} items; give one label per item")
    source = describe_object(items, len(items))
    return Dataset(name, items_in_memory(items, source), codes, classes, source=source)


def load_arrays(file: Path) -> Dataset:
    """Reads ``images`` (n, h, w[, 3]) or ``vectors`` (n, d), and ``labels`` (n,) of integers or strings.

    Also reads ``split``, ``is_query`` and ``is_gallery`` if they exist. Every other array (n,) of numbers or strings
    becomes an attribute.
    """
    columns = read_archive(file, partial(_wanted, file))
    codes, classes = class_labels(columns.pop("labels"), str(file))
    items: Items
    if "images" in columns:
        items = _pixels(columns.pop("images"), str(file))
    else:
        items = _vectors(columns.pop("vectors"), str(file))
    known: dict[str, Any] = {name: columns.pop(name).astype(kind) for name, kind in COLUMNS.items() if name in columns}
    return Dataset(file.stem, items, codes, classes, **known, attributes=columns)


def _wanted(file: Path, headers: Mapping[str, Header]) -> list[str]:
    """Returns the names of the arrays to read; raises if the arrays do not fit together."""
    given = [name for name in ("images", "vectors") if name in headers]
    if "labels" not in headers or len(given) != 1:
        found = ", ".join(headers) or "nothing"
        raise UserError(f"{file} must contain 'labels' and either 'images' or 'vectors' (found: {found})")
    count = headers["labels"].shape[:1]
    if headers[given[0]].shape[:1] != count or not count:
        shapes = f"{headers['labels'].shape} and {headers[given[0]].shape}"
        raise UserError(f"{file}: labels and {given[0]} must have equal lengths, but their shapes are {shapes}")
    for name in COLUMNS:
        if name in headers and (headers[name].shape != count or headers[name].dtype.kind not in KINDS[name]):
            found = f"{headers[name].dtype} of shape {headers[name].shape}"
            raise UserError(
                f"{file}: {name} must be {'strings' if name == 'split' else 'true or false'} of shape (n,), got {found}"
            )
    others = headers.keys() - {"labels", *given, *COLUMNS}
    attributes = [
        name
        for name, header in headers.items()
        if name in others and header.shape == count and header.dtype.kind in "biufSU"
    ]
    return ["labels", *given, *(name for name in COLUMNS if name in headers), *attributes]


def items_in_memory(items: Any, where: str) -> Items:
    """Converts what `from_arrays` takes as items; ``where`` names the source in messages."""
    first = items[0] if isinstance(items, list | tuple) else None
    if isinstance(first, str | Path):
        return ImageFiles([Path(path) for path in items])
    if isinstance(first, Image.Image) or getattr(first, "ndim", 1) > 1:
        return LazyImages(items, None, np.arange(len(items)), where)
    try:
        values = as_array(items)
    except ValueError as error:
        raise UserError(f"{where}: all vectors must have the same length; give shape (n, features)") from error
    if values.ndim < 3:
        return _vectors(values, where)
    return _pixels(values, where, is_tensor=hasattr(items, "detach"))


def _vectors(vectors: Array, where: str) -> Vectors:
    if vectors.ndim != 2 or vectors.dtype.kind not in "bfiu" or vectors.size == 0:
        found = f"{vectors.dtype} of shape {vectors.shape}"
        raise UserError(f"{where}: vectors must be numbers of shape (n, features), got {found}")
    with np.errstate(over="ignore"):  # becomes infinite, which is reported below
        values = vectors.astype(np.float32, copy=False)
    unusable = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(unusable):
        raise UserError(
            f"{where}: {len(unusable):,} of {len(values):,} vectors contain NaN or infinity, the first in row "
            f"{unusable[0]}; replace these values or leave these items out"
        )
    return Vectors(values)


def _pixels(images: Array, where: str, is_tensor: bool = False) -> ImageArray:
    try:
        # (height, width, 3) is one colour image, not a stack of grey images three pixels wide.
        if images.ndim not in (3, 4) or (images.ndim == 3 and images.shape[-1] == 3) or not images.size:
            raise ValueError("not a stack of images")
        last = channels_last(images, (1, 3), is_tensor) if images.ndim == 4 else images
        return ImageArray(eight_bit(last[..., 0] if last.shape[3:] == (1,) else last))
    except ValueError as error:
        raise UserError(
            f"{where}: {images.dtype} of shape {images.shape} cannot be images ({error}); give (n, height, width) or "
            "(n, height, width, 3), uint8 or floating point in 0…1"
        ) from None
