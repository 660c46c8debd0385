"""Summarises data in a few lines: numbers of items and classes, image sizes, what was left out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from nearkin.data.dataset import SPLITS, Dataset
from nearkin.data.hierarchy import true_classes
from nearkin.data.images import image_size
from nearkin.data.items import ImageArray, ImageFiles, Items, LazyImages, Vectors
from nearkin.data.splits import Splits

SAMPLED = 500  # files whose header is read for the image sizes
SAMPLED_OBJECTS = 50  # images of an object, which must be decoded for this
LABEL = 14  # width of the label column


def describe_splits(splits: Splits) -> list[str]:
    """Returns aligned lines about the data and its splits.

    >>> data = Dataset("toy", Vectors(np.zeros((6, 3), np.float32)), np.array([0, 0, 0, 0, 1, 1]), ["cat", "dog"])
    >>> for line in describe_splits(Splits(data, None, None)):
    ...     print(line)
    data          toy: 6 vectors, 2 classes
      train       6 vectors, 2 classes
      test        none
      size        3 features
    """
    every: dict[str, Dataset | None] = {name: getattr(splits, name) for name in SPLITS}
    found = {name: true_classes(split) for name, split in every.items() if split is not None}
    train = found["train"]
    items, classes = sum(map(len, found.values())), len(set(chain(*(each.present_classes for each in found.values()))))
    what = "vector" if isinstance(train.items, Vectors) else "image"
    lines = [labelled("data", f"{train.name}: {counted(items, what)}, {counted(classes, 'class')}")]
    widths = [len(f"{largest:,}") for largest in (max(map(len, found.values())), classes)]
    for name, split in found.items():
        here = f"{counted(len(split), what, widths[0])}, {counted(len(split.present_classes), 'class', widths[1])}"
        lines.append(labelled(f"  {name}", f"{here}{_role(name, split, splits)}"))
    if splits.test is None:
        lines.append(labelled("  test", "none"))
    sizes = _sizes([split.items for split in found.values()])
    return [*lines, *sizes, *(labelled("  note", note) for note in train.notes)]


def labelled(label: str, text: str) -> str:
    """
    >>> labelled("model", "resnet50")
    'model         resnet50'
    """
    return f"{label:<{LABEL}}{text}"


def counted(number: int, noun: str, width: int = 0) -> str:
    """
    >>> counted(1, "class"), counted(2000, "class"), counted(3, "image", width=5)
    ('1 class', '2,000 classes', '    3 images')
    """
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:{width},} {noun}{ending}"


def _role(name: str, split: Dataset, splits: Splits) -> str:
    """Describes the purpose of a split, and whether its classes occur in training."""
    if name == "train":
        return " (merged into random pairs)" if splits.train.true_labels is not None else ""
    if name == "validation":
        return " (held out to choose the model)"
    in_train = np.isin(split.present_classes, true_classes(splits.train).present_classes)
    if in_train.all():
        return " (same classes as train)"
    return " (some also in train)" if in_train.any() else " (unseen in training)"


def _sizes(items: Sequence[Items]) -> list[str]:
    """Smallest, median and largest image size; of many images, an evenly spaced sample is read."""
    first = items[0]
    if isinstance(first, Vectors):
        return [labelled("  size", f"{counted(first.values.shape[1], 'feature')}")]
    if isinstance(first, ImageArray):
        width, height = first.size
        return [labelled("  size", f"{width}×{height} pixels, {'grey' if first.channels == 1 else 'RGB'}")]
    every = [(each, n) for each in items if isinstance(each, ImageFiles | LazyImages) for n in range(len(each))]
    most = SAMPLED_OBJECTS if isinstance(first, LazyImages) else SAMPLED
    chosen = np.unique(np.linspace(0, len(every) - 1, min(most, len(every))).astype(int))
    found = (_size(*every[n]) for n in chosen)
    sizes = sorted(filter(None, found), key=lambda size: (size[0] * size[1], size))
    if not sizes:
        return []
    smallest, median, largest = (f"{width}×{height}" for width, height in (sizes[0], sizes[len(sizes) // 2], sizes[-1]))
    sampled = f" ({len(chosen):,} sampled)" if len(chosen) < len(every) else ""
    text = f"{smallest} to {largest} pixels, median {median}" if smallest != largest else f"{smallest} pixels"
    return [labelled("  size", text + sampled)]


def _size(items: ImageFiles | LazyImages, index: int) -> tuple[int, int] | None:
    return items.sample(index).size if isinstance(items, LazyImages) else image_size(items.paths[index])
