"""Any map-style torch dataset of (image, label): torchvision's, subsets and concatenations, people's own classes.

An image is a Pillow image, a tensor (c, h, w), an array (h, w, c), or a vector of features; a label is a number, a text
or a tensor of one number. Pixels are 0…255 as uint8 or 0…1 in floating point. The dataset's own transform is applied;
it should not normalise, which the model does itself.
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
from nearkin.data.dataset import Dataset, class_labels, described
from nearkin.data.folder import SUFFIXES
from nearkin.data.items import ImageFiles, Items, LazyImages, cannot_read, joined
from nearkin.data.loader import each_item
from nearkin.data.pixels import as_array, as_picture
from nearkin.data.unreadable import remember_readable
from nearkin.errors import UserError


def from_torch(data: Any) -> Dataset:
    """A dataset of what a map-style torch dataset holds.

    Images are read when they are needed. Labels are taken from the dataset's ``targets`` or ``labels``, or else from
    one pass over all items. An ``ImageFolder`` without a transform is read as its files; vectors, and what torchvision
    has in memory, are taken from there.

    >>> from_torch([(np.zeros((8, 8)), "cat"), (np.ones((9, 9)), "dog")]).classes
    ['cat', 'dog']
    """
    source = described(data, len(data))
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
    """What a torch dataset says about its items without giving them; None for what it does not say."""

    items: Items | None = None
    labels: Sequence[Any] | None = None
    classes: list[str] | None = None

    def take(self, indices: Sequence[int]) -> _Known:
        items = None if self.items is None else self.items.take(np.array(indices, dtype=np.int64))
        labels = None if self.labels is None else [self.labels[index] for index in indices]
        return _Known(items, labels, self.classes)

    def names(self) -> list[str] | None:
        """The class names, if the labels are numbers of them."""
        labels = self.labels or []
        numbered = all(isinstance(label, int) and 0 <= label < len(self.classes or ()) for label in labels)
        return self.classes if numbered else None


def _known(data: Any, source: str) -> _Known:
    # The very classes, not those derived from them, whose items may be something else.
    if type(data) is Subset:
        return _known(data.dataset, source).take(list(data.indices))
    if type(data) is ConcatDataset:
        several = [_known(each, source) for each in data.datasets]
        items = [each.items for each in several if each.items is not None]
        kept = [each.labels for each in several if each.labels is not None]
        return _Known(
            joined(items, source) if len(items) == len(several) else None,
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
    as_they_are = _is_torchvision(data, "__getitem__") and data.transforms is None
    if as_they_are and labels and getattr(pixels, "ndim", 0) in (3, 4):
        return _Known(items_in_memory(pixels, source), labels, classes)
    return _Known(None, labels, classes)


def _read(data: Any, source: str, known: _Known) -> _Known:
    """The items, and the labels if they must be read: some of them will tell whether those that are known are right."""
    if _plain_pair(data, source, 0)[0].ndim == 1:
        pairs = each_item(partial(_plain_pair, data, source), len(data), "reading items")
        vectors = items_in_memory([vector for vector, _ in pairs], source)
        return _Known(vectors, [label for _, label in pairs], known.classes)
    items = LazyImages(data, 0, np.arange(len(data)), source)
    rows = {0, len(data) // 2, len(data) - 1}
    if known.labels and all(known.labels[row] == _label(data, source, row) for row in rows):
        return replace(known, items=items)
    labels = each_item(partial(_label, data, source), len(data), "reading labels")
    remember_readable(items)
    return replace(known, items=items, labels=labels)


def _kept_labels(data: Any) -> list[Any] | None:
    for name in ("targets", "labels", "_labels"):
        with suppress(ValueError):  # of something that is not an array
            labels = as_array(getattr(data, name, None)).tolist()
            if isinstance(labels, list) and len(labels) == len(data):
                return labels
    return None


def _class_names(data: Any) -> list[str] | None:
    classes = getattr(data, "classes", None)
    if not isinstance(classes, list | tuple):
        return None
    return [", ".join(name) if isinstance(name, tuple) else str(name) for name in classes]  # ImageNet's are synonyms


def _changes_labels(data: Any) -> bool:
    both = getattr(data, "transforms", None) is not None and getattr(data, "transform", None) is None
    return both or getattr(data, "target_transform", None) is not None


def _is_plain_folder(data: Any) -> bool:
    """An ``ImageFolder`` whose items are its files as they are."""
    return (
        _is_torchvision(data, "__getitem__", ".folder")
        and _is_torchvision(data, "loader", ".folder")
        and data.transform is None
        and all(Path(path).suffix.lower() in SUFFIXES for path, _ in data.samples)
    )


def _is_torchvision(data: Any, function: str, module: str = "") -> bool:
    """Whether a function of this object is torchvision's, rather than one that somebody put in its place."""
    where: str = getattr(getattr(data, function, None), "__module__", None) or ""
    return where.startswith(f"torchvision.datasets{module}")


def _name(data: Any) -> str:
    if type(data) is Subset:
        return _name(data.dataset)
    return Path(data.root).resolve().name if _is_plain_folder(data) else type(data).__name__


def _label(data: Any, source: str, row: int) -> Any:
    """A label, of an item whose image can be read."""
    image, label = _pair(data, source, row)
    try:
        as_picture(image)
        return as_array(label).tolist()
    except Exception as error:
        raise cannot_read(row, source, error) from error


def _plain_pair(data: Any, source: str, row: int) -> tuple[Any, Any]:
    """An item without tensors, to leave a worker process."""
    image, label = _pair(data, source, row)
    try:
        return as_array(image), as_array(label).tolist()
    except Exception as error:
        raise cannot_read(row, source, error) from error


def _pair(data: Any, source: str, row: int) -> tuple[Any, Any]:
    try:
        item = data[row]
    except Exception as error:  # somebody else's code may raise anything
        raise cannot_read(row, source, error) from error
    if not isinstance(item, tuple | list) or len(item) != 2:
        found = f"a tuple of {len(item)}" if isinstance(item, tuple | list) else f"of type {type(item).__name__}"
        raise UserError(
            f"item {row} of {source} is {found}, not a pair (image, label); give a dataset of such pairs, or arrays "
            "with their labels as (X, y)"
        )
    return item[0], item[1]
