"""Arrays: a pair of items and labels in memory, or a NumPy ``.npz`` of both with further columns."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from nearkin.data.dataset import Dataset, class_labels, described
from nearkin.data.items import ImageArray, ImageFiles, Items, LazyImages, Vectors
from nearkin.data.pixels import Array, as_array, channels_last, eight_bit
from nearkin.errors import UserError
from nearkin.files import open_regular


def from_arrays(items: Any, labels: Any, name: str = "arrays") -> Dataset:
    """A dataset of items and labels in memory: arrays, tensors or lists.

    Args:
        items: vectors (n, features), or images: (n, h, w), (n, h, w, 3), (n, 1, h, w) or (n, 3, h, w), uint8 or
            floating point in 0…1; or a list of paths, or of pictures of any sizes.
        labels: (n,) whole numbers or text.

    >>> data = from_arrays([[0.5, 1.0], [0.0, 2.0]], ["cat", "dog"])
    >>> data.items.values.shape, data.classes
    ((2, 2), ['cat', 'dog'])
    """
    if not hasattr(items, "__len__") or not len(items):
        raise UserError("(X, y) holds no items; X and y need one entry for each")
    codes, classes = class_labels(labels, "(X, y)")
    if len(codes) != len(items):
        raise UserError(f"(X, y) has {len(codes):,} labels for {len(items):,} items; give one label for each item")
    source = described(items, len(items))
    return Dataset(name, items_in_memory(items, source), codes, classes, source=source)


def load_arrays(file: Path) -> Dataset:
    """Reads ``images`` (n, h, w[, 3]) or ``vectors`` (n, d), and ``labels`` (n,) of any spelling."""
    try:
        with open_regular(file) as opened, np.load(opened, allow_pickle=False) as archive:
            columns: dict[str, Array] = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{file} is not a readable .npz of arrays ({error}); write it with numpy.savez") from error
    labels = columns.pop("labels", None)
    if labels is None or ("images" in columns) == ("vectors" in columns):
        found = ", ".join(columns) or "nothing"
        raise UserError(f"{file} must hold 'labels' and either 'images' or 'vectors' (found: {found})")
    codes, classes = class_labels(labels, str(file))
    as_items = _pixels if "images" in columns else _vectors
    items = as_items(columns.pop("images" if "images" in columns else "vectors"), str(file))
    masks = {name: columns.pop(name, None) for name in ("is_query", "is_gallery")}
    split = columns.pop("split", None)
    return Dataset(
        name=file.stem,
        items=items,
        labels=codes,
        classes=classes,
        split=None if split is None else split.astype(str),
        is_query=None if masks["is_query"] is None else masks["is_query"].astype(bool),
        is_gallery=None if masks["is_gallery"] is None else masks["is_gallery"].astype(bool),
        attributes={name: column for name, column in columns.items() if column.shape[:1] == codes.shape},
    )


def items_in_memory(items: Any, where: str) -> Items:
    """What `from_arrays` takes as items; ``where`` is what they belong to, for messages."""
    first = items[0] if isinstance(items, list | tuple) else None
    if isinstance(first, str | Path):
        return ImageFiles([Path(path) for path in items])
    if isinstance(first, Image.Image) or getattr(first, "ndim", 1) > 1:
        return LazyImages(items, None, np.arange(len(items)), where)
    try:
        values = as_array(items)
    except ValueError as error:
        raise UserError(f"{where}: vectors must have one length; give (n, features)") from error
    if values.ndim < 3:
        return _vectors(values, where)
    return _pixels(values, where, is_tensor=hasattr(items, "detach"))


def _vectors(vectors: Array, where: str) -> Vectors:
    if vectors.ndim != 2 or vectors.dtype.kind not in "bfiu" or vectors.size == 0:
        found = f"{vectors.dtype} of shape {vectors.shape}"
        raise UserError(f"{where}: vectors must be numbers of shape (n, features), not {found}")
    with np.errstate(over="ignore"):  # becomes infinite, which is said
        values = vectors.astype(np.float32)
    unusable = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(unusable):
        raise UserError(
            f"{where}: {len(unusable):,} of {len(values):,} vectors hold NaN or infinity, the first in row "
            f"{unusable[0]}; replace such values or leave these items out"
        )
    return Vectors(values)


def _pixels(images: Array, where: str, is_tensor: bool = False) -> ImageArray:
    try:
        # (height, width, 3) is one colour picture, not a stack of grey ones three pixels wide.
        if images.ndim not in (3, 4) or (images.ndim == 3 and images.shape[-1] == 3) or not images.size:
            raise ValueError("not a stack of pictures")
        last = channels_last(images, (1, 3), is_tensor) if images.ndim == 4 else images
        return ImageArray(eight_bit(last[..., 0] if last.shape[3:] == (1,) else last))
    except ValueError as error:
        raise UserError(
            f"{where}: {images.dtype} of shape {images.shape} cannot be images ({error}); give (n, height, width) or "
            "(n, height, width, 3), uint8 or floating point in 0…1"
        ) from None
