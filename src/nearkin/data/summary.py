"""What a dataset was found to be, in a few lines: how many items and classes, their sizes, what was left out."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import numpy as np

from nearkin.data.dataset import SPLITS, Dataset
from nearkin.data.hierarchy import true_classes
from nearkin.data.images import image_size
from nearkin.data.items import ImageArray, ImageFiles, Items, Vectors
from nearkin.data.splits import Splits

SAMPLED = 500  # files whose head is read to learn how large images are
LABEL = 14  # letters before the text of a line


def describe_splits(splits: Splits) -> list[str]:
    """Lines about the data and its splits, aligned.

    >>> data = Dataset("toy", Vectors(np.zeros((6, 3), np.float32)), np.array([0, 0, 0, 0, 1, 1]), ["cat", "dog"])
    >>> for line in describe_splits(Splits(data, None, None)):
    ...     print(line)
    data          toy: 6 vectors of 2 classes
      train       6 vectors, 2 classes
      test        none
      size        3 numbers each
    """
    parts: dict[str, Dataset | None] = {name: getattr(splits, name) for name in SPLITS}
    found = {name: true_classes(part) for name, part in parts.items() if part is not None}
    train = found["train"]
    items, classes = sum(map(len, found.values())), len(set(chain(*(part.present_classes for part in found.values()))))
    what = "vector" if isinstance(train.items, Vectors) else "image"
    lines = [labelled("data", f"{train.name}: {counted(items, what)} of {counted(classes, 'class')}")]
    widths = [len(f"{largest:,}") for largest in (max(map(len, found.values())), classes)]
    for name, part in found.items():
        here = f"{counted(len(part), what, widths[0])}, {counted(len(part.present_classes), 'class', widths[1])}"
        lines.append(labelled(f"  {name}", f"{here}{_role(name, part, splits)}"))
    if splits.test is None:
        lines.append(labelled("  test", "none"))
    sizes = _sizes([part.items for part in found.values()])
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


def _role(name: str, part: Dataset, splits: Splits) -> str:
    """What a split is for, and whether its classes are trained on."""
    if name == "train":
        return " in random pairs" if splits.train.true_labels is not None else ""
    if name == "validation":
        return " (held out to choose the model)"
    trained_on = np.isin(part.present_classes, true_classes(splits.train).present_classes)
    if trained_on.all():
        return " (other items of the classes trained on)"
    return " (some of them trained on)" if trained_on.any() else " (none of them trained on)"


def _sizes(items: Iterable[Items]) -> list[str]:
    """The smallest, the median and the largest size; of many files, those of some all over them."""
    kinds = list(items)
    first = kinds[0]
    if isinstance(first, Vectors):
        return [labelled("  size", f"{first.values.shape[1]:,} numbers each")]
    if isinstance(first, ImageArray):
        height, width = first.pixels.shape[1:3]
        return [labelled("  size", f"{width}×{height} pixels, {'grey' if first.channels == 1 else 'RGB'}")]
    paths = [path for each in kinds if isinstance(each, ImageFiles) for path in each.paths]
    chosen = np.unique(np.linspace(0, len(paths) - 1, min(SAMPLED, len(paths))).astype(int))
    sizes = sorted(filter(None, (image_size(paths[n]) for n in chosen)), key=lambda size: (size[0] * size[1], size))
    if not sizes:
        return []
    smallest, median, largest = (f"{width}×{height}" for width, height in (sizes[0], sizes[len(sizes) // 2], sizes[-1]))
    sampled = f" (of {len(chosen):,} sampled)" if len(chosen) < len(paths) else ""
    text = f"{smallest} to {largest} pixels, median {median}" if smallest != largest else f"{smallest} pixels"
    return [labelled("  size", text + sampled)]
