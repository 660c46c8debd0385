"""Hugging Face datasets with a column of images and one of labels, or dictionaries of their splits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nearkin.data.arrays import items_in_memory
from nearkin.data.dataset import Dataset, class_labels, describe_object
from nearkin.data.items import Items, LazyImages
from nearkin.data.join import join_splits
from nearkin.errors import UserError

TYPES = ("datasets.arrow_dataset.Dataset", "datasets.dataset_dict.DatasetDict")
NUMBERS = ("List", "LargeList", "Sequence", "Array2D", "Array3D")  # types of columns that may contain vectors or pixels


def is_hugging_face(data: object) -> bool:
    """Checks the full type name: the package may not be installed, and many projects have a module `datasets`."""
    return any(f"{base.__module__}.{base.__qualname__}" in TYPES for base in type(data).__mro__)


def from_hugging_face(data: Any, image: str | None = None, label: str | None = None) -> Dataset:
    """Makes a dataset from a Hugging Face dataset; images are read when they are needed.

    Args:
        data: a ``datasets.Dataset``, or a ``DatasetDict`` whose splits become the official split.
        image: column of images or vectors; None: the only column of that type, or the one named "image".
        label: column of labels; None: the only ``ClassLabel`` column, else the only one of strings or integers, or the
            one named "label".

    >>> import datasets  # doctest: +SKIP
    >>> from_hugging_face(datasets.load_from_disk("cats"), image="img", label="breed")  # doctest: +SKIP
    """
    if isinstance(data, Mapping):
        return join_splits({name: from_hugging_face(split, image, label) for name, split in data.items()}, data)
    source = describe_object(data, len(data))
    if not len(data):
        raise UserError(f"{source} is empty; give a dataset with items")
    types = {name: type(feature).__name__ for name, feature in data.features.items()}
    image = image or _only("image", [_of(types, "Image"), _of(types, *NUMBERS)], data, source)
    plain = [name for name in _of(types, "Value") if data.features[name].dtype not in ("float32", "float64")]
    label = label or _only("label", [_of(types, "ClassLabel"), plain], data, source)
    for column in (image, label):
        if column not in types:
            raise UserError(f"{source} has no column '{column}'; it has {', '.join(types)}")
    names = data.features[label].names if types[label] == "ClassLabel" else None
    codes, classes = class_labels(data.with_format(None)[label][:], f"{source}, column '{label}'", names)
    # A custom transform may need all columns.
    table = data if data.format["type"] == "custom" else data.select_columns([image])
    items: Items = LazyImages(table, image, np.arange(len(data)), source)
    if types[image] in NUMBERS and np.ndim(data.with_format(None)[0][image]) == 1:
        items = items_in_memory(data.with_format("numpy")[image][:], f"{source}, column '{image}'")
    return Dataset(data.info.dataset_name or "dataset", items, codes, classes, source=source)


def is_saved(folder: Path) -> bool:
    """Whether the folder was written by ``save_to_disk``."""
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def load_saved(folder: Path) -> Any:
    """Loads what ``save_to_disk`` wrote: tables and JSON, no code."""
    try:
        from datasets import load_from_disk
    except ModuleNotFoundError as error:
        raise UserError(f"{folder} is a Hugging Face dataset; run `pip install 'nearkin[hub]'` to read it") from error
    try:
        return load_from_disk(str(folder))
    except Exception as error:  # damaged or missing files raise many types
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UserError(f"{folder} cannot be read as a Hugging Face dataset ({reason}); save it again") from error


def _of(types: Mapping[str, str], *wanted: str) -> list[str]:
    return [name for name, kind in types.items() if kind in wanted]


def _only(what: str, choices: Iterable[list[str]], data: Any, source: str) -> str:
    """Returns the only candidate of the first list that has any; if there are several, the one named ``what``."""
    found = next(filter(None, choices), [])
    if len(found) == 1 or what in found:
        return what if what in found else found[0]
    several = f"several columns that could be the {what} ({', '.join(found)})" if found else f"no column for the {what}"
    columns = ", ".join(data.features)
    raise UserError(
        f"{source} has {several}; choose one of {columns}: "
        f'nearkin.data.from_hugging_face(dataset, {what}="{(found or list(data.features))[0]}")'
    )
