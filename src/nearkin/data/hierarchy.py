"""Hierarchy recovery: training sees random pairs of classes as one, and is measured by the classes themselves.

Rippel, Paluri, Dollár, Bourdev: Metric Learning with Adaptive Density Discrimination, ICLR 2016, 4.3 and Table 4f.

Where the number of classes is odd, the last one drawn stays alone; the paper has 90.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nearkin.data.dataset import Dataset
from nearkin.data.items import Indices
from nearkin.data.splits import Splits


def collapse_pairs(dataset: Dataset, seed: int = 0) -> Dataset:
    """The dataset with its classes collapsed to random pairs; ``true_classes`` undoes it.

    A pair's label is none of its classes' labels, so that nobody takes one for the other.

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
    """Collapses what a model is trained and chosen on, not what it is tested on; held-out classes pair on their own."""
    train, validation = splits.train.present_classes, splits.validation
    held_out = np.setdiff1d(validation.present_classes, train) if validation else train[:0]
    partners = _partners([train, held_out], len(splits.train.classes), seed)
    return replace(
        splits, train=_collapsed(splits.train, partners), validation=validation and _collapsed(validation, partners)
    )


def true_classes(dataset: Dataset) -> Dataset:
    """A collapsed dataset by its own classes again; any other as it is."""
    return dataset if dataset.true_labels is None else replace(dataset, labels=dataset.true_labels, true_labels=None)


def _partners(groups: Sequence[Indices], classes: int, seed: int) -> Indices:
    """(classes,) the class that each is paired with, within its group; itself, where it stays alone."""
    partner = np.arange(classes)
    random = np.random.default_rng(seed)
    for group in groups:
        shuffled = random.permutation(group)[: len(group) // 2 * 2]
        first, second = shuffled[::2], shuffled[1::2]
        partner[first], partner[second] = second, first
    return partner


def _collapsed(dataset: Dataset, partner: Indices) -> Dataset:
    """Labels beyond those of the classes: the pair of classes a < b has the label a + number of classes."""
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
