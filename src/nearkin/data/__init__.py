"""What goes in: image folders, tables, arrays, benchmark datasets; and how they are split."""

from nearkin.data.dataset import Dataset
from nearkin.data.items import ImageArray, ImageFiles, Items, Vectors
from nearkin.data.sources import load_dataset, without_unreadable
from nearkin.data.splits import Splits, make_splits

__all__ = [
    "Dataset",
    "ImageArray",
    "ImageFiles",
    "Items",
    "Splits",
    "Vectors",
    "load_dataset",
    "make_splits",
    "without_unreadable",
]
