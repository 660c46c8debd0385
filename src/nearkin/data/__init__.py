"""Datasets and their splits: from folders, tables, arrays, torch and Hugging Face datasets, and benchmarks."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nearkin.data.arrays import from_arrays
    from nearkin.data.dataset import Dataset
    from nearkin.data.hugging_face import from_hugging_face
    from nearkin.data.items import ImageArray, ImageFiles, Items, LazyImages, Vectors
    from nearkin.data.sources import as_dataset, load_dataset
    from nearkin.data.splits import Splits, make_splits
    from nearkin.data.unreadable import without_unreadable

__all__ = [
    "Dataset",
    "ImageArray",
    "ImageFiles",
    "Items",
    "LazyImages",
    "Splits",
    "Vectors",
    "as_dataset",
    "from_arrays",
    "from_hugging_face",
    "load_dataset",
    "make_splits",
    "without_unreadable",
]

# Imported on first use, so that a process that only decodes images starts quickly.
_HOME = {
    "arrays": ["from_arrays"],
    "dataset": ["Dataset"],
    "hugging_face": ["from_hugging_face"],
    "items": ["ImageArray", "ImageFiles", "Items", "LazyImages", "Vectors"],
    "sources": ["as_dataset", "load_dataset"],
    "splits": ["Splits", "make_splits"],
    "unreadable": ["without_unreadable"],
}


def __getattr__(name: str) -> Any:
    for module, names in _HOME.items():
        if name in names:
            return getattr(import_module(f"nearkin.data.{module}"), name)
    raise AttributeError(f"module 'nearkin.data' has no attribute '{name}'")
