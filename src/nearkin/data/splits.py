"""Train, validation and test splits: the official ones, or a split by classes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nearkin.data.dataset import SPLITS, Dataset, Mask
from nearkin.data.items import ImageArray, Indices, LazyImages, Vectors
from nearkin.errors import UserError, unknown_name

Assignment = npt.NDArray[np.str_]  # (items,) name of each item's split
BY_CLASSES = ("classes", "first-half")
HOW = ("official", *BY_CLASSES, "all")


@dataclass(frozen=True)
class Splits:
    """The splits of a dataset; ``validation`` and ``test`` may be None.

    ``held_out`` is the fraction of the training classes that became the validation split.
    """

    train: Dataset
    validation: Dataset | None
    test: Dataset | None
    held_out: float = 0.0

    def digest(self) -> str:
        """Changes when items are added or removed, or change their class or split; not when the folder moves.

        Items without names are identified by their content.
        """
        digest = hashlib.sha256()
        for name in SPLITS:
            split: Dataset | None = getattr(self, name)
            digest.update(f"{name}\n".encode())
            if split is not None:
                names = (Path(item).name for item in split.items.names())
                rows = (f"{item}|{split.classes[label]}\n" for item, label in zip(names, split.labels, strict=True))
                digest.update("".join(rows).encode())
                if isinstance(split.items, ImageArray | LazyImages | Vectors):
                    digest.update(split.items.fingerprint().encode())
        return digest.hexdigest()


def make_splits(
    dataset: Dataset, how: str | None = None, validation: float | None = 0.0, seed: int = 0, split_seed: int = 0
) -> Splits:
    """Splits a dataset.

    Args:
        how: "official" uses the source's own split; "classes" trains on a random half of the classes and tests on the
            other half; "first-half" trains on the first half of the classes in order, as papers do; "all" trains on
            everything and tests on nothing. None: see `default_split`.
        validation: fraction of the training *classes* to hold out for model selection. A fraction of 1/F makes F
            folds: seeds 0 … F−1 hold out different classes, the next F seeds use F other folds, and so on.
            None: see `default_validation`; nothing is held out if the source has a validation split, the test
            classes are the training classes, or ``how`` is "all".
        seed: random seed for the validation classes.
        split_seed: random seed for "classes"; separate from ``seed``, so that runs with different seeds are tested on
            the same classes.

    >>> data = Dataset("toy", Vectors(np.zeros((6, 1), np.float32)), np.arange(6), list("abcdef"))
    >>> splits = make_splits(data)
    >>> splits.train.present_classes.tolist(), splits.test.present_classes.tolist()
    ([2, 3, 5], [0, 1, 4])
    """
    how = how or default_split(dataset)
    if how not in HOW:
        raise unknown_name("split", how, HOW)
    assigned = _assignment(dataset, how, split_seed)
    if validation is None:
        assigned, validation = _hold_out_default(dataset, assigned, how, seed)
    elif validation:
        assigned = _hold_out_classes(dataset, assigned, validation, seed)
    train = _split(dataset, assigned == "train")
    if train is None or len(train.present_classes) < 2:
        found = "no items" if train is None else _classes(train)
        if how == "all":
            raise UserError(f"{dataset.name} has {found}, but needs at least two classes; add classes")
        raise UserError(
            f"{dataset.name}: the training split has {found}, but needs at least two classes; "
            'add classes, or train on all of them with split="all"'
        )
    return Splits(train, _split(dataset, assigned == "validation"), _split(dataset, assigned == "test"), validation)


def default_validation(labels: Indices) -> float:
    """Returns the default fraction of the training classes to hold out: a tenth.

    Fewer than ten classes select badly: five flowers are so easy to separate that heads looked better on them although
    they were worse on all other classes. With fewer than a hundred classes, ten are therefore held out, but
    at most a fifth and at least four. None are held out if there are fewer than eight classes, or if most classes have
    fewer than the two items that a score needs.

    >>> [round(classes * default_validation(np.arange(classes).repeat(2))) for classes in (6, 17, 40, 80, 200)]
    [0, 4, 8, 10, 20]
    """
    sizes = np.unique(labels, return_counts=True)[1]
    a_tenth, a_fifth = round(len(sizes) / 10), round(len(sizes) / 5)
    held_out = max(4, min(max(10, a_tenth), a_fifth))
    too_few = len(sizes) < 8 or (sizes > 1).mean() < 0.5
    return 0.0 if too_few else held_out / len(sizes)


def default_split(dataset: Dataset) -> str:
    """Returns "official" if the source defines splits, else "classes"."""
    return "classes" if dataset.split is None else "official"


def _assignment(dataset: Dataset, how: str, split_seed: int) -> Assignment:
    if how == "all":
        return np.full(len(dataset), "train", dtype="<U10")
    if how == "official":
        if dataset.split is None:
            raise UserError(
                f'{dataset.name} has no official split; use split="classes", split="first-half" or split="all"'
            )
        return dataset.split.astype("<U10")
    if len(dataset.present_classes) < 2:
        problem = f"{dataset.name} has {_classes(dataset)} but needs at least two; add classes"
        raise UserError("; ".join([problem, *dataset.notes]))
    classes = dataset.present_classes
    if how == "classes":
        classes = np.random.default_rng(split_seed).permutation(classes)
    train = classes[: (len(classes) + 1) // 2]
    return np.where(np.isin(dataset.labels, train), "train", "test").astype("<U10")


def _hold_out_default(dataset: Dataset, assigned: Assignment, how: str, seed: int) -> tuple[Assignment, float]:
    """Holds out the default fraction of classes, if that makes sense; returns the splits and the fraction."""
    train, test = dataset.labels[assigned == "train"], dataset.labels[assigned == "test"]
    known = len(test) > 0 and bool(np.isin(test, train).all())  # the test classes are the training classes
    fraction = 0.0 if known or how == "all" or (assigned == "validation").any() else default_validation(train)
    if not fraction:
        return assigned, 0.0
    divided = _hold_out_classes(dataset, assigned, fraction, seed)
    sizes = np.unique(dataset.labels[divided == "validation"], return_counts=True)[1]
    can_be_scored = len(sizes) > 1 and sizes.max() > 1
    return (divided, fraction) if can_be_scored else (assigned, 0.0)


def _hold_out_classes(dataset: Dataset, assigned: Assignment, fraction: float, seed: int) -> Assignment:
    """Moves whole training classes to validation; an official validation split joins training first."""
    if not 0 < fraction < 1:
        raise UserError(f"validation must be a fraction of the training classes between 0 and 1, got {fraction}")
    assigned = np.where(assigned == "validation", "train", assigned)
    classes = np.unique(dataset.labels[assigned == "train"])
    folds = 1 if fraction > 0.5 else max(1, min(round(1 / fraction), len(classes) // 2))  # at least two classes each
    turn, fold = divmod(seed, folds)
    order = np.random.default_rng(turn).permutation(classes)
    held_out = np.array_split(order, folds)[fold][: max(2, round(fraction * len(classes)))]
    return np.where((assigned == "train") & np.isin(dataset.labels, held_out), "validation", assigned)


def _split(dataset: Dataset, mask: Mask) -> Dataset | None:
    """Returns a split, or None if it is empty; a split without queries or without a gallery is searched in itself."""
    if not mask.any():
        return None
    split = dataset.where(mask)
    roles = (split.is_query, split.is_gallery)
    if any(role is not None and not role.any() for role in roles):
        return replace(split, is_query=None, is_gallery=None)
    return split


def _classes(dataset: Dataset) -> str:
    count = len(dataset.present_classes)
    return "only one class" if count == 1 else f"{count} classes"
