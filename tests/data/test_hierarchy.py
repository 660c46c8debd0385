"""Merging classes into pairs hides the classes from training and from nothing else."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearkin.data import Dataset, Vectors, make_splits
from nearkin.data.hierarchy import collapse_pairs, collapse_training, true_classes


def numbered(labels: list[int], split: list[str] | None = None) -> Dataset:
    names = [f"c{label}" for label in range(max(labels) + 1)]
    values = np.arange(len(labels), dtype=np.float32)[:, None]
    parts = None if split is None else np.array(split)
    colours = np.array([f"colour{i % 2}" for i in range(len(labels))])
    return Dataset("numbered", Vectors(values), np.array(labels), names, parts, attributes={"colour": colours})


def members(collapsed: Dataset) -> dict[int, set[int]]:
    """The true classes of each label."""
    groups: dict[int, set[int]] = {}
    for label, truth in zip(collapsed.labels.tolist(), true_classes(collapsed).labels.tolist(), strict=True):
        groups.setdefault(label, set()).add(truth)
    return groups


@given(st.lists(st.integers(0, 30), min_size=1, max_size=60), st.integers(0, 5))
def test_every_label_is_a_pair_of_classes_and_one_is_unpaired_if_their_number_is_odd(labels, seed):
    dataset = numbered(labels)
    collapsed = collapse_pairs(dataset, seed)
    groups = members(collapsed)
    sizes = Counter(len(group) for group in groups.values())
    assert sizes == Counter({2: len(set(labels)) // 2} | ({1: 1} if len(set(labels)) % 2 else {}))
    for label, group in groups.items():
        assert collapsed.classes[label] == " + ".join(dataset.classes[truth] for truth in sorted(group))
        assert label >= len(dataset.classes)  # never the label of a class


@given(st.lists(st.integers(0, 30), min_size=1, max_size=60))
def test_the_true_classes_are_restored(labels):
    dataset = numbered(labels)
    again = true_classes(collapse_pairs(dataset))
    assert again.labels.tolist() == labels
    assert again.attributes.keys() == {"colour"}
    assert again.attributes["colour"].tolist() == dataset.attributes["colour"].tolist()
    assert true_classes(dataset) is dataset


def test_the_seed_decides_the_pairs_and_they_are_random():
    dataset = numbered(list(range(40)))
    draws = [collapse_pairs(dataset, seed).labels.tolist() for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


def test_the_test_split_keeps_its_classes():
    splits = make_splits(numbered(list(range(8)) * 2, ["train"] * 8 + ["test"] * 8))
    collapsed = collapse_training(splits)
    assert collapsed.test is splits.test
    assert len(collapsed.train.present_classes) == 4
    assert not collapsed.train.knows_classes_of(splits.test)
    assert true_classes(collapsed.train).knows_classes_of(splits.test)
    assert collapsed.digest() != splits.digest()


def test_held_out_classes_are_paired_among_themselves():
    splits = collapse_training(make_splits(numbered(list(range(20)) * 2), "all", validation=0.4))
    assert splits.validation is not None
    assert {len(group) for part in (splits.train, splits.validation) for group in members(part).values()} == {2}
    assert not set(splits.train.labels) & set(splits.validation.labels)


@pytest.mark.parametrize("seed", range(5))
def test_an_official_validation_split_has_the_pairs_of_training(seed):
    labels = list(range(7)) * 2 + [0, 3, 5]  # validation has only some classes
    splits = collapse_training(make_splits(numbered(labels, ["train"] * 14 + ["validation"] * 3)), seed)
    assert splits.validation is not None
    label_of = dict(zip(true_classes(splits.train).labels, splits.train.labels, strict=True))
    assert splits.validation.labels.tolist() == [label_of[truth] for truth in (0, 3, 5)]


def test_an_attribute_is_not_mistaken_for_the_classes() -> None:
    dataset = replace(numbered([0, 1, 2, 3]), attributes={"true_label": np.array([1, 1, 0, 0])})
    for each in (dataset, collapse_pairs(dataset)):
        assert true_classes(each).labels.tolist() == [0, 1, 2, 3]
        assert each.attributes["true_label"].tolist() == [1, 1, 0, 0]


def test_true_classes_are_taken_with_their_items() -> None:
    pairs = collapse_pairs(numbered([0, 1, 2, 3, 0, 1]))
    assert true_classes(pairs.take(np.array([5, 2]))).labels.tolist() == [1, 2]
