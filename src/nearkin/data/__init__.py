"""What goes in: folders, tables, arrays, torch and Hugging Face datasets, benchmarks; and how they are split."""

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
