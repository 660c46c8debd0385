"""`Dataset`: items, their class labels, and further columns."""

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
WHOLE_NUMBER = re.compile(r"-?\d{1,18}")  # longer ones are treated as text


@dataclass(frozen=True, eq=False)
class Dataset:
    """Items with class labels.

    Attributes:
        name: what to call it in tables and messages.
        items: image files, images in memory, images read from another library's dataset, or feature vectors.
        labels: (items,) indices into ``classes``; a subset keeps the indices of the full dataset.
        classes: class names; the "first-half" split takes the first half in this order.
        split: (items,) "train", "validation" or "test"; None if the source does not define splits.
        is_query: (items,) mask of the queries, if they are searched in a separate gallery.
        is_gallery: (items,) mask of that gallery.
        attributes: further columns by name, each (items,).
        true_labels: (items,) the labels before classes were merged into pairs; None if they were not.
        notes: one sentence each on how the data were read, such as which files were ignored.
        source: the path or name that `load_dataset` takes; in angle brackets, the object it was made from.
        protocol: how papers evaluate it, if not by searching all items in all others: "random-gallery", see
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
        """Returns the items at ``indices`` with all their columns."""
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
        """Returns the same dataset with its items in another form, such as the features of a frozen backbone."""
        return replace(self, items=items)

    @property
    def dense_labels(self) -> Indices:
        """(items,) labels renumbered over the classes that occur, 0…classes−1 without gaps."""
        return np.searchsorted(self.present_classes, self.labels)

    @property
    def present_classes(self) -> Indices:
        """Indices of the classes that occur, ascending."""
        return np.unique(self.labels)

    def knows_classes_of(self, other: Dataset) -> bool:
        """Whether every class of ``other``, another split of the same data, also occurs here."""
        return bool(np.isin(other.present_classes, self.present_classes).all())


def class_labels(values: Any, where: str, names: Sequence[str] | None = None) -> tuple[Indices, Sequence[str]]:
    """Converts labels, one integer or string per item, to indices and class names.

    Args:
        where: names the source in messages.
        names: the class names that integer labels refer to, if known.

    >>> class_labels(["cat", "ant", "cat"], "pets")
    (array([1, 0, 1]), ['ant', 'cat'])
    """
    try:
        column = as_array(values)
    except ValueError as error:
        raise UserError(
            f"{where}: labels must be one integer or string per item, got lists of different lengths"
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
            f"{where}: labels must be one integer or string per item, got {column.dtype} of shape {column.shape}"
        )
    if names is None or column.dtype.kind == "U":
        return encode_labels([str(value) for value in column.tolist()])
    unknown = column[(column < 0) | (column >= len(names))]
    if len(unknown):
        raise UserError(f"{where}: label {unknown[0]} is not one of the {len(names)} classes; leave such items out")
    return column.astype(np.int64), [str(name) for name in names]


def encode_labels(values: Sequence[str]) -> tuple[Indices, list[str]]:
    """Converts class names, one per item, to indices and sorted class names; integers sort by value.

    Every source of data uses this function.

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


def describe_object(data: Any, count: int) -> str:
    """Describes an object, as the ``source`` of the dataset made from it.

    >>> describe_object([1, 2], 2)
    '<list of 2 items>'
    """
    kind = type(data)
    return f"<{kind.__module__}.{kind.__qualname__} of {count:,} items>".replace("<builtins.", "<")
