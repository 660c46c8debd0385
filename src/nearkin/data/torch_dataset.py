"""Map-style torch datasets of (image, label): torchvision's, subsets, concatenations, and a user's own classes.

An image is a Pillow image, a tensor (c, h, w), an array (h, w, c), or a feature vector. A label is a number, a string
or a tensor of one number. Pixels are uint8 in 0…255 or floating point in 0…1. The dataset's own transform is applied.
It should not normalise; the model does that itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from nearkin.data.arrays import items_in_memory
from nearkin.data.dataset import Dataset, class_labels, describe_object
from nearkin.data.folder import SUFFIXES
from nearkin.data.items import ImageFiles, Items, LazyImages, cannot_read, concatenate_items
from nearkin.data.loader import each_item
from nearkin.data.pixels import as_array, as_image
from nearkin.data.unreadable import mark_readable
from nearkin.errors import UserError


def from_torch(data: Any) -> Dataset:
    """Makes a dataset from a map-style torch dataset.

    Images are read when they are needed. Labels come from the dataset's ``targets`` or ``labels``, or else from one
    pass over all items. An ``ImageFolder`` without a transform becomes image files. Vectors, and images that
    torchvision keeps in memory, are kept in memory.

    >>> from_torch([(np.zeros((8, 8)), "cat"), (np.ones((9, 9)), "dog")]).classes
    ['cat', 'dog']
    """
    source = describe_object(data, len(data))
    if not len(data):
        raise UserError(f"{source} is empty; give a dataset with items")
    known = _known(data, source)
    if known.items is None:
        known = _read(data, source, known)
    assert known.items is not None and known.labels is not None
    codes, classes = class_labels(known.labels, source, known.names())
    return Dataset(_name(data), known.items, codes, classes, source=source)


@dataclass(frozen=True)
class _Known:
    """What is known about a torch dataset without reading its items; None if unknown."""

    items: Items | None = None
    labels: Sequence[Any] | None = None
    classes: list[str] | None = None

    def take(self, indices: Sequence[int]) -> _Known:
        items = None if self.items is None else self.items.take(np.array(indices, dtype=np.int64))
        labels = None if self.labels is None else [self.labels[index] for index in indices]
        return _Known(items, labels, self.classes)

    def names(self) -> list[str] | None:
        """The class names, if the labels are indices into them."""
        labels = self.labels or []
        numbered = all(isinstance(label, int) and 0 <= label < len(self.classes or ()) for label in labels)
        return self.classes if numbered else None


def _known(data: Any, source: str) -> _Known:
    # Exact types: the items of a subclass may be something else.
    if type(data) is Subset:
        return _known(data.dataset, source).take(list(data.indices))
    if type(data) is ConcatDataset:
        several = [_known(each, source) for each in data.datasets]
        items = [each.items for each in several if each.items is not None]
        kept = [each.labels for each in several if each.labels is not None]
        return _Known(
            concatenate_items(items, source) if len(items) == len(several) else None,
            list(chain(*kept)) if len(kept) == len(several) else None,
            several[0].classes if all(each.classes == several[0].classes for each in several) else None,
        )
    if type(data) is TensorDataset and len(data.tensors) == 2:
        return _Known(items_in_memory(data.tensors[0], source), as_array(data.tensors[1]).tolist())
    if _changes_labels(data):
        return _Known()
    classes = _class_names(data)
    if _is_plain_folder(data):
        return _Known(ImageFiles([Path(path) for path, _ in data.samples]), [each for _, each in data.samples], classes)
    labels = _kept_labels(data)
    pixels = getattr(data, "data", None)
    untransformed = _is_torchvision(data, "__getitem__") and data.transforms is None
    if untransformed and labels and getattr(pixels, "ndim", 0) in (3, 4):
        return _Known(items_in_memory(pixels, source), labels, classes)
    return _Known(None, labels, classes)


def _read(data: Any, source: str, known: _Known) -> _Known:
    """Adds the items, and reads the labels unless the known ones agree with a few that are read as a check."""
    if _plain_pair(data, source, 0)[0].ndim == 1:
        pairs = each_item(partial(_plain_pair, data, source), len(data), "reading items")
        vectors = items_in_memory([vector for vector, _ in pairs], source)
        return _Known(vectors, [label for _, label in pairs], known.classes)
    items = LazyImages(data, 0, np.arange(len(data)), source)
    rows = {0, len(data) // 2, len(data) - 1}
    if known.labels and all(known.labels[row] == _label(data, source, row) for row in rows):
        return replace(known, items=items)
    labels = each_item(partial(_label, data, source), len(data), "reading labels")
    mark_readable(items)
    return replace(known, items=items, labels=labels)


def _kept_labels(data: Any) -> list[Any] | None:
    for name in ("targets", "labels", "_labels"):
        with suppress(ValueError):  # not an array
            labels = as_array(getattr(data, name, None)).tolist()
            if isinstance(labels, list) and len(labels) == len(data):
                return labels
    return None


def _class_names(data: Any) -> list[str] | None:
    classes = getattr(data, "classes", None)
    if not isinstance(classes, list | tuple):
        return None
    return [", ".join(name) if isinstance(name, tuple) else str(name) for name in classes]  # ImageNet has synonyms


def _changes_labels(data: Any) -> bool:
    both = getattr(data, "transforms", None) is not None and getattr(data, "transform", None) is None
    return both or getattr(data, "target_transform", None) is not None


def _is_plain_folder(data: Any) -> bool:
    """Whether this is an ``ImageFolder`` whose items are its files, untransformed."""
    return (
        _is_torchvision(data, "__getitem__", ".folder")
        and _is_torchvision(data, "loader", ".folder")
        and data.transform is None
        and all(Path(path).suffix.lower() in SUFFIXES for path, _ in data.samples)
    )


def _is_torchvision(data: Any, function: str, module: str = "") -> bool:
    """Whether a function of this object is torchvision's own, not an override."""
    where: str = getattr(getattr(data, function, None), "__module__", None) or ""
    return where.startswith(f"torchvision.datasets{module}")


def _name(data: Any) -> str:
    if type(data) is Subset:
        return _name(data.dataset)
    return Path(data.root).resolve().name if _is_plain_folder(data) else type(data).__name__


def _label(data: Any, source: str, row: int) -> Any:
    """Returns the label of an item; raises if its image cannot be read."""
    image, label = _pair(data, source, row)
    try:
        as_image(image)
        return as_array(label).tolist()
    except Exception as error:
        raise cannot_read(row, source, error) from error


def _plain_pair(data: Any, source: str, row: int) -> tuple[Any, Any]:
    """Returns an item without tensors, so that it can leave a worker process."""
    image, label = _pair(data, source, row)
    try:
        return as_array(image), as_array(label).tolist()
    except Exception as error:
        raise cannot_read(row, source, error) from error


def _pair(data: Any, source: str, row: int) -> tuple[Any, Any]:
    try:
        item = data[row]
    except Exception as error:  # a user's code may raise anything
        raise cannot_read(row, source, error) from error
    if not isinstance(item, tuple | list) or len(item) != 2:
        found = f"a tuple of {len(item)}" if isinstance(item, tuple | list) else f"of type {type(item).__name__}"
        raise UserError(
            f"item {row} of {source} is {found}, not a pair (image, label); pass a dataset of such pairs, or arrays "
            "and labels as (X, y)"
        )
    return item[0], item[1]
