"""Splits that come as several things become one dataset with an official split."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nearkin.data.dataset import Dataset, described, encode_labels
from nearkin.data.folder import SPLITS
from nearkin.data.items import joined
from nearkin.errors import UserError


def join_splits(splits: Mapping[str, Dataset], made_of: Any) -> Dataset:
    """One dataset of all splits; a class is the same in all of them if it has the same name.

    Args:
        splits: by name: "train", "validation" (or "val", "valid") and "test". A single one is taken as data without
            a split.
        made_of: the object that they come from.
    """
    unknown = [name for name in splits if name.lower() not in SPLITS]
    if len(splits) == 1:
        return next(iter(splits.values()))
    if unknown or not splits:
        found = f"'{unknown[0]}'" if unknown else "nothing"
        raise UserError(f"splits are called train, validation and test, not {found}; rename it or leave it out")
    several = list(splits.values())
    source = described(made_of, sum(map(len, several)))
    items = joined([each.items for each in several], source)
    if items is None:
        raise UserError("the splits hold items of different kinds or shapes; give the same kind in all of them")
    first = several[0]
    if all(list(each.classes) == list(first.classes) for each in several):  # which keep their order
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
