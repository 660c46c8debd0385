"""A dataset: items, their classes, and what is known about each of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from nearkin.data.items import Indices, Items
from nearkin.data.pixels import as_array
from nearkin.errors import UserError
from nearkin.names import check_names

SPLITS = ("train", "validation", "test")
Mask = npt.NDArray[np.bool_]
WHOLE_NUMBER = re.compile(r"-?\d{1,18}")  # longer ones are names


@dataclass(frozen=True, eq=False)
class Dataset:
    """Items with class labels.

    Attributes:
        name: what to call it in tables and messages.
        items: image files, images in memory, images of an object, or feature vectors.
        labels: (items,) positions in ``classes``; a subset keeps the numbers of the whole.
        classes: the class names, in the order in which the "first-half" split takes them.
        split: (items,) "train", "validation" or "test", where the source says so; None where it does not.
        is_query, is_gallery: (items,) for datasets whose test set is searched in another set than itself.
        attributes: further columns by name, each (items,).
        true_labels: (items,) the labels before classes were paired; None where they were not.
        notes: what a user should know about how it was read, such as files that were ignored; a sentence each.
        source: what `load_dataset` loads it from again; in angle brackets, the object that it was made of.
        protocol: how papers measure it, where that is not all against all: "random-gallery", see
            `nearkin.evaluation.galleries`.

    >>> from nearkin.data import from_arrays
    >>> from_arrays([[0.0], [1.0], [2.0]], ["cat", "cat", "dog"])
    Dataset('arrays': 3 items of 2 classes)
    """

    name: str
    items: Items
    labels: Indices
    classes: Sequence[str]
    split: npt.NDArray[np.str_] | None = None
    is_query: Mask | None = None
    is_gallery: Mask | None = None
    attributes: Mapping[str, npt.NDArray[np.generic]] = field(default_factory=dict)
    true_labels: Indices | None = None
    notes: Sequence[str] = ()
    source: str = ""
    protocol: str = ""

    def __post_init__(self) -> None:
        columns = {
            "labels": self.labels,
            "split": self.split,
            "is_query": self.is_query,
            "is_gallery": self.is_gallery,
        }
        for name, column in {**columns, **self.attributes}.items():
            if column is not None and len(column) != len(self.items):
                raise UserError(f"{self.name}: {name} has {len(column)} entries for {len(self.items)} items")
        unknown = set() if self.split is None else set(self.split.tolist()) - set(SPLITS)
        if unknown:
            raise UserError(f"{self.name}: split '{unknown.pop()}' is not one of {', '.join(SPLITS)}")

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        return f"Dataset({self.name!r}: {len(self):,} items of {len(self.present_classes):,} classes)"

    def take(self, indices: Indices) -> Dataset:
        """The items at ``indices``, with everything that is known about them."""
        return replace(
            self,
            items=self.items.take(indices),
            labels=self.labels[indices],
            split=None if self.split is None else self.split[indices],
            is_query=None if self.is_query is None else self.is_query[indices],
            is_gallery=None if self.is_gallery is None else self.is_gallery[indices],
            attributes={name: column[indices] for name, column in self.attributes.items()},
            true_labels=None if self.true_labels is None else self.true_labels[indices],
        )

    def where(self, mask: Mask) -> Dataset:
        return self.take(np.flatnonzero(mask))

    def with_items(self, items: Items) -> Dataset:
        """The same items in another form, for example as the features of a frozen backbone."""
        return replace(self, items=items)

    @property
    def dense_labels(self) -> Indices:
        """(items,) labels counted over the classes that have items here, 0…classes−1 without gaps."""
        return np.searchsorted(self.present_classes, self.labels)

    @property
    def present_classes(self) -> Indices:
        """The classes that have items here, ascending."""
        return np.unique(self.labels)

    def knows_classes_of(self, other: Dataset) -> bool:
        """Whether every class of another split of the same data has items here too."""
        return bool(np.isin(other.present_classes, self.present_classes).all())


def class_labels(values: Any, where: str, names: Sequence[str] | None = None) -> tuple[Indices, Sequence[str]]:
    """Labels of any kind, one number or text per item, as positions in the class names.

    Args:
        where: what they belong to, for messages.
        names: the class names that whole numbers stand for, where these are known.

    >>> class_labels(["cat", "ant", "cat"], "pets")
    (array([1, 0, 1]), ['ant', 'cat'])
    """
    try:
        column = as_array(values)
    except ValueError as error:
        raise UserError(
            f"{where}: labels must be one whole number or text per item, not lists of different lengths"
        ) from error
    if column.ndim == 2 and column.shape[1] == 1:
        column = column[:, 0]
    if column.dtype.kind == "O" and all(isinstance(value, str) for value in column.flat):
        column = column.astype(np.str_)
    if column.dtype.kind == "b" or (column.dtype.kind == "f" and np.array_equal(column, np.round(column))):
        column = column.astype(np.int64)
    missing = sum(value is None or value != value for value in column.tolist()) if column.ndim == 1 else 0
    if missing and column.dtype.kind in "fO":
        raise UserError(f"{where}: {missing:,} of {len(column):,} labels are NaN or None; give every item a label")
    if column.ndim != 1 or column.dtype.kind not in "iuU":
        raise UserError(
            f"{where}: labels must be one whole number or text per item, not {column.dtype} of shape {column.shape}"
        )
    if names is None or column.dtype.kind == "U":
        return encode_labels([str(value) for value in column.tolist()])
    unknown = column[(column < 0) | (column >= len(names))]
    if len(unknown):
        raise UserError(f"{where}: label {unknown[0]} is not one of its {len(names)} classes; leave such items out")
    return column.astype(np.int64), [str(name) for name in names]


def encode_labels(values: Sequence[str]) -> tuple[Indices, list[str]]:
    """Labels of any spelling as positions in the sorted class names; whole numbers sort by value.

    The one way from what a user wrote to labels.

    >>> labels, classes = encode_labels(["10", "9", "10"])
    >>> labels.tolist(), classes
    ([1, 0, 1], ['9', '10'])
    """
    distinct = set(values)
    check_names(distinct, "class")
    numeric = all(map(WHOLE_NUMBER.fullmatch, distinct))
    classes = sorted(distinct, key=(lambda value: (int(value), value)) if numeric else None)
    position = {name: i for i, name in enumerate(classes)}
    return np.array([position[value] for value in values], dtype=np.int64), classes


def described(made_of: Any, count: int) -> str:
    """An object as the ``source`` of its dataset.

    >>> described([1, 2], 2)
    '<list of 2 items>'
    """
    kind = type(made_of)
    return f"<{kind.__module__}.{kind.__qualname__} of {count:,} items>".replace("<builtins.", "<")
