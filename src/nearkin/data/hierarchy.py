"""Hierarchy recovery: trains on random pairs of classes merged into one, and evaluates on the original classes.

Rippel, Paluri, Dollár, Bourdev: Metric Learning with Adaptive Density Discrimination, ICLR 2016, 4.3 and Table 4f.

If the number of classes is odd, the last one drawn is not paired; the paper has 90 classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nearkin.data.dataset import Dataset
from nearkin.data.items import Indices
from nearkin.data.splits import Splits


def collapse_pairs(dataset: Dataset, seed: int = 0) -> Dataset:
    """Merges the classes of a dataset into random pairs; ``true_classes`` undoes it.

    A pair gets a new label, different from those of its classes, so that the two cannot be confused.

    >>> from nearkin.data.items import Vectors
    >>> letters = Dataset("letters", Vectors(np.eye(4)), np.array([0, 1, 2, 3]), ["a", "b", "c", "d"])
    >>> pairs = collapse_pairs(letters)
    >>> [pairs.classes[label] for label in pairs.labels]
    ['a + c', 'b + d', 'a + c', 'b + d']
    >>> true_classes(pairs).labels.tolist()
    [0, 1, 2, 3]
    """
    return _collapsed(dataset, _partners([dataset.present_classes], len(dataset.classes), seed))


def collapse_training(splits: Splits, seed: int = 0) -> Splits:
    """Merges the classes of the training and validation splits, not of the test split.

    Held-out classes are paired among themselves.
    """
    train, validation = splits.train.present_classes, splits.validation
    held_out = np.setdiff1d(validation.present_classes, train) if validation else train[:0]
    partners = _partners([train, held_out], len(splits.train.classes), seed)
    return replace(
        splits, train=_collapsed(splits.train, partners), validation=validation and _collapsed(validation, partners)
    )


def true_classes(dataset: Dataset) -> Dataset:
    """Restores the original classes of a dataset with merged classes; returns any other dataset unchanged."""
    return dataset if dataset.true_labels is None else replace(dataset, labels=dataset.true_labels, true_labels=None)


def _partners(groups: Sequence[Indices], classes: int, seed: int) -> Indices:
    """(classes,) the class that each class is paired with, within its group; itself if it is not paired."""
    partner = np.arange(classes)
    random = np.random.default_rng(seed)
    for group in groups:
        shuffled = random.permutation(group)[: len(group) // 2 * 2]
        first, second = shuffled[::2], shuffled[1::2]
        partner[first], partner[second] = second, first
    return partner


def _collapsed(dataset: Dataset, partner: Indices) -> Dataset:
    """Labels the pair of classes a < b as a + number of classes, beyond the labels of the classes themselves."""
    classes = len(partner)
    names = [
        dataset.classes[a] if a == b else f"{dataset.classes[min(a, b)]} + {dataset.classes[max(a, b)]}"
        for a, b in enumerate(partner.tolist())
    ]
    return replace(
        dataset,
        labels=classes + np.minimum(dataset.labels, partner[dataset.labels]),
        classes=[*dataset.classes, *names],
        true_labels=dataset.labels,
    )
