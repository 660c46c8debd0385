"""Joins splits that are given separately into one dataset with an official split."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nearkin.data.dataset import Dataset, describe_object, encode_labels
from nearkin.data.folder import SPLITS
from nearkin.data.items import concatenate_items
from nearkin.errors import UserError


def join_splits(splits: Mapping[str, Dataset], data: Any) -> Dataset:
    """Joins all splits into one dataset; classes with the same name are the same class.

    Args:
        splits: datasets by name: "train", "validation" (or "val", "valid") and "test". A single one is returned
            unchanged, without a split.
        data: the object that they come from.
    """
    unknown = [name for name in splits if name.lower() not in SPLITS]
    if len(splits) == 1:
        return next(iter(splits.values()))
    if not splits:
        raise UserError("the dictionary has no splits; give train, validation or test")
    if unknown:
        raise UserError(
            f"splits must be named train, validation or test, got '{unknown[0]}'; rename it or leave it out"
        )
    several = list(splits.values())
    source = describe_object(data, sum(map(len, several)))
    items = concatenate_items([each.items for each in several], source)
    if items is None:
        raise UserError(
            "the splits contain items of different kinds or shapes; give the same kind and shape in all splits"
        )
    first = several[0]
    if all(list(each.classes) == list(first.classes) for each in several):  # keep their order
        labels, classes = np.concatenate([each.labels for each in several]), list(first.classes)
    else:
        labels, classes = encode_labels([str(each.classes[label]) for each in several for label in each.labels])
    return Dataset(
        name=first.name,
        items=items,
        labels=labels,
        classes=classes,
        split=np.repeat([SPLITS[name.lower()] for name in splits], [len(each) for each in several]),
        source=source,
    )
