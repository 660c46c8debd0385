"""What is trained on, what chooses the model, what is tested: the official split, or one by classes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nearkin.data.dataset import SPLITS, Dataset, Mask
from nearkin.data.items import ImageArray, Indices, LazyImages, Vectors
from nearkin.errors import UserError, unknown_name

Assignment = npt.NDArray[np.str_]  # (items,) the split of each
BY_CLASSES = ("classes", "first-half")
HOW = ("official", *BY_CLASSES, "all")


@dataclass(frozen=True)
class Splits:
    """The splits of a dataset; ``validation`` and ``test`` are None where there are none.

    ``held_out`` is the share of the training classes that became the validation split.
    """

    train: Dataset
    validation: Dataset | None
    test: Dataset | None
    held_out: float = 0.0

    def digest(self) -> str:
        """Changes when items come or go, or change their class or split; not when the folder moves as a whole.

        Items without names are told by their content.
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
        how: "official" follows the source's own split; "classes" trains on half of the classes, drawn at random, and
            tests on the other half; "first-half" trains on the first half of the classes in their order, as papers
            do; "all" trains on everything and tests on nothing. None: see `usual_split`.
        validation: the share of the training *classes* to hold out for choosing the model. A share of 1/F makes F
            folds: seeds 0 … F−1 hold out different classes, the next F seeds go through other folds, and so on.
            None: `usual_validation`, unless the source has a validation split, tests on the training classes, or
            everything is to be trained on.
        seed: of the validation classes.
        split_seed: of the classes that "classes" draws; apart from ``seed``, so that runs of several seeds are tested
            on the same classes.

    >>> data = Dataset("toy", Vectors(np.zeros((6, 1), np.float32)), np.arange(6), list("abcdef"))
    >>> splits = make_splits(data)
    >>> splits.train.present_classes.tolist(), splits.test.present_classes.tolist()
    ([2, 3, 5], [0, 1, 4])
    """
    how = how or usual_split(dataset)
    if how not in HOW:
        raise unknown_name("split", how, HOW)
    assigned = _assignment(dataset, how, split_seed)
    if validation is None:
        assigned, validation = _hold_out_usual(dataset, assigned, how, seed)
    elif validation:
        assigned = _hold_out_classes(dataset, assigned, validation, seed)
    train = _split(dataset, assigned == "train")
    if train is None or len(train.present_classes) < 2:
        found = "no items" if train is None else _classes(train)
        raise UserError(
            f"{dataset.name}: the training split has {found}, and two classes are needed to tell them apart; "
            'add classes, or train on all of them with split="all"'
        )
    return Splits(train, _split(dataset, assigned == "validation"), _split(dataset, assigned == "test"), validation)


def usual_validation(labels: Indices) -> float:
    """The share of the training classes to hold out when nothing is said: a tenth.

    Fewer than ten classes judge badly: five flowers are told apart so easily that heads which were worse on all others
    looked better on them. So ten are held out of fewer than a hundred, though never more than a fifth, and at least
    four. None are held out of fewer than 8 classes, nor where most classes lack the two items that a score needs.

    >>> [round(classes * usual_validation(np.arange(classes).repeat(2))) for classes in (6, 17, 40, 80, 200)]
    [0, 4, 8, 10, 20]
    """
    sizes = np.unique(labels, return_counts=True)[1]
    a_tenth, a_fifth = round(len(sizes) / 10), round(len(sizes) / 5)
    held_out = max(4, min(max(10, a_tenth), a_fifth))
    too_few = len(sizes) < 8 or (sizes > 1).mean() < 0.5
    return 0.0 if too_few else held_out / len(sizes)


def usual_split(dataset: Dataset) -> str:
    """How a dataset is split where nobody says: as its source does, else by classes."""
    return "classes" if dataset.split is None else "official"


def _assignment(dataset: Dataset, how: str, split_seed: int) -> Assignment:
    if how == "all":
        return np.full(len(dataset), "train", dtype="<U10")
    if how == "official":
        if dataset.split is None:
            raise UserError(f'{dataset.name} has no split of its own; use split="classes", "first-half" or "all"')
        return dataset.split.astype("<U10")
    if len(dataset.present_classes) < 2:
        why = "there is nothing to tell it apart from: add classes"
        raise UserError("; ".join([f"{dataset.name} has {_classes(dataset)}; {why}", *dataset.notes]))
    classes = dataset.present_classes
    if how == "classes":
        classes = np.random.default_rng(split_seed).permutation(classes)
    trained_on = classes[: (len(classes) + 1) // 2]
    return np.where(np.isin(dataset.labels, trained_on), "train", "test").astype("<U10")


def _hold_out_usual(dataset: Dataset, assigned: Assignment, how: str, seed: int) -> tuple[Assignment, float]:
    """The splits after the usual share of classes was held out, if that makes sense; and this share."""
    train, test = dataset.labels[assigned == "train"], dataset.labels[assigned == "test"]
    known = len(test) > 0 and bool(np.isin(test, train).all())  # the test is about classes that are trained on
    share = 0.0 if known or how == "all" or (assigned == "validation").any() else usual_validation(train)
    if not share:
        return assigned, 0.0
    divided = _hold_out_classes(dataset, assigned, share, seed)
    sizes = np.unique(dataset.labels[divided == "validation"], return_counts=True)[1]
    measurable = len(sizes) > 1 and sizes.max() > 1
    return (divided, share) if measurable else (assigned, 0.0)


def _hold_out_classes(dataset: Dataset, assigned: Assignment, share: float, seed: int) -> Assignment:
    """Moves a share of the training classes, whole, to validation (an official validation split joins training)."""
    if not 0 < share < 1:
        raise UserError(f"validation must be a share of the training classes between 0 and 1, not {share}")
    assigned = np.where(assigned == "validation", "train", assigned)  # one set of classes chooses the model, not two
    classes = np.unique(dataset.labels[assigned == "train"])
    folds = 1 if share > 0.5 else max(1, min(round(1 / share), len(classes) // 2))  # of two classes at least
    turn, fold = divmod(seed, folds)
    order = np.random.default_rng(turn).permutation(classes)
    held_out = np.array_split(order, folds)[fold][: max(2, round(share * len(classes)))]
    return np.where((assigned == "train") & np.isin(dataset.labels, held_out), "validation", assigned)


def _split(dataset: Dataset, mask: Mask) -> Dataset | None:
    """A split, or None where it is empty; one without queries or gallery of its own is searched in itself."""
    if not mask.any():
        return None
    split = dataset.where(mask)
    roles = (split.is_query, split.is_gallery)
    if any(role is not None and not role.any() for role in roles):
        return replace(split, is_query=None, is_gallery=None)
    return split


def _classes(dataset: Dataset) -> str:
    count = len(dataset.present_classes)
    return "one class only" if count == 1 else f"{count} classes"
