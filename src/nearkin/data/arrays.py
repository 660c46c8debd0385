"""A NumPy ``.npz``: ``images`` or ``vectors``, with ``labels`` and further columns of the same length."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nearkin.data.dataset import Dataset, encode_labels
from nearkin.data.items import ImageArray, Items, Vectors
from nearkin.errors import UserError

Array = npt.NDArray[Any]


def load_arrays(file: Path) -> Dataset:
    """Reads ``images`` (n, h, w[, 3]) uint8 or ``vectors`` (n, d), and ``labels`` (n,) of any spelling."""
    try:
        with np.load(file, allow_pickle=False) as archive:
            columns: dict[str, Array] = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{file} is no readable .npz of plain arrays ({error}); write it with numpy.savez") from error
    labels = columns.pop("labels", None)
    if labels is None or ("images" in columns) == ("vectors" in columns):
        found = ", ".join(columns) or "nothing"
        raise UserError(f"{file} must hold 'labels' and either 'images' or 'vectors' (found: {found})")
    if labels.ndim != 1 or labels.dtype.kind not in "iuU":
        raise UserError(f"{file}: labels must be one whole number or text per item, not {labels.dtype} {labels.shape}")
    items = array_items(columns.pop("images", None), columns.pop("vectors", None), str(file))
    codes, classes = encode_labels([str(label) for label in labels.tolist()])
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
        attributes={name: column for name, column in columns.items() if column.shape[:1] == labels.shape},
    )


def array_items(images: Array | None, vectors: Array | None, where: str) -> Items:
    """Arrays as items, with the reason where they cannot be."""
    if images is not None:
        # (height, width, 3) is one colour picture, not a stack of grey ones three pixels wide.
        grey = images.ndim == 3 and images.shape[-1] != 3
        colour = images.ndim == 4 and images.shape[-1] == 3
        if images.dtype != np.uint8 or not (grey or colour) or images.size == 0:
            raise UserError(
                f"{where}: images must be uint8 of shape (n, height, width) or (n, height, width, 3), "
                f"not {images.dtype} {images.shape}"
            )
        return ImageArray(images)
    if vectors is None or vectors.ndim != 2 or vectors.dtype.kind not in "fiu" or vectors.size == 0:
        raise UserError(f"{where}: vectors must be numbers of shape (n, features)")
    unusable = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(unusable):
        raise UserError(f"{where}: {len(unusable)} vectors hold NaN or infinity, the first in row {unusable[0]}")
    return Vectors(vectors.astype(np.float32))
