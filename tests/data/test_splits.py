"""Which items are for training, validation and test."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearkin.data import Dataset, Vectors, make_splits
from nearkin.errors import UserError


def dataset(labels: list[int], split: list[str] | None = None) -> Dataset:
    classes = [f"c{n}" for n in range(max(labels) + 1)]
    items = Vectors(np.arange(len(labels), dtype=np.float32)[:, None])
    return Dataset("toy", items, np.array(labels), classes, None if split is None else np.array(split))


def classes_of(split: Dataset | None) -> list[int]:
    return [] if split is None else split.present_classes.tolist()


def test_first_half_trains_on_the_first_half_of_the_classes_and_tests_on_the_second() -> None:
    splits = make_splits(dataset([0, 1, 2, 3, 4, 4]), "first-half")
    assert classes_of(splits.train) == [0, 1, 2]
    assert classes_of(splits.test) == [3, 4]
    assert splits.validation is None


def test_half_of_the_classes_is_drawn_at_random() -> None:
    data = dataset(list(range(21)) * 2)
    drawn = [make_splits(data, split_seed=seed) for seed in range(40)]
    assert all(sorted(classes_of(each.train) + classes_of(each.test)) == list(range(21)) for each in drawn)
    assert {len(classes_of(each.train)) for each in drawn} == {11}
    assert len({tuple(classes_of(each.train)) for each in drawn}) == 40
    times_trained_on = np.bincount([label for each in drawn for label in classes_of(each.train)])
    assert times_trained_on.min() > 8 and times_trained_on.max() < 34  # of 40; 21 are expected


def test_the_test_classes_do_not_depend_on_the_training_seed() -> None:
    data = dataset(list(range(20)) * 2)
    first, second = (make_splits(data, validation=0.2, seed=seed) for seed in (0, 1))
    assert classes_of(first.test) == classes_of(second.test)
    assert classes_of(first.validation) != classes_of(second.validation)


def test_an_official_split_is_the_default() -> None:
    data = dataset([0, 1, 0, 1], ["train", "train", "test", "test"])
    assert classes_of(make_splits(data).test) == [0, 1]
    with pytest.raises(UserError, match="only one class"):
        make_splits(data, "classes")


def test_validation_classes_are_disjoint_from_training_and_test() -> None:
    splits = make_splits(dataset(list(range(20)) * 2), validation=0.3, seed=1)
    train, validation, test = (set(classes_of(split)) for split in (splits.train, splits.validation, splits.test))
    assert [len(train), len(validation), len(test)] == [7, 3, 10]
    assert len(train | validation | test) == 20


def test_the_validation_classes_depend_only_on_the_seed() -> None:
    data = dataset(list(range(20)))
    first, again, other = (make_splits(data, validation=0.3, seed=seed).validation for seed in (1, 1, 2))
    assert classes_of(first) == classes_of(again) != classes_of(other)


@given(
    classes=st.integers(4, 40),
    share=st.floats(0.02, 0.5),
    turn=st.integers(0, 3),
    numbers=st.randoms(use_true_random=False),
)
def test_consecutive_seeds_hold_out_different_classes(
    classes: int, share: float, turn: int, numbers: random.Random
) -> None:
    """As many folds as the classes allow, each with the requested fraction, one per seed of a round."""
    labels = list(range(classes)) * 2
    numbers.shuffle(labels)  # the order of the items does not matter
    split = ["train"] * len(labels)
    folds = min(round(1 / share), classes // 2)
    held_out = []
    for seed in range(turn * folds, (turn + 1) * folds):
        splits = make_splits(dataset(labels, split), validation=share, seed=seed)
        held_out.append(classes_of(splits.validation))
        assert sorted(classes_of(splits.train) + held_out[-1]) == list(range(classes))
    together = [label for fold in held_out for label in fold]
    assert len(together) == len(set(together))
    wanted = max(2, round(share * classes))
    assert all(min(wanted, classes // folds) <= len(fold) <= wanted for fold in held_out)
    assert held_out[0] == classes_of(make_splits(dataset(sorted(labels), split), None, share, turn * folds).validation)


def test_a_fraction_above_one_half_is_drawn_anew_for_every_seed() -> None:
    data = dataset(list(range(20)), ["train"] * 20)
    found = [classes_of(make_splits(data, validation=0.7, seed=seed).validation) for seed in range(3)]
    assert [len(classes) for classes in found] == [14, 14, 14] and found[0] != found[1] != found[2]


def test_everything_can_be_trained_on() -> None:
    splits = make_splits(dataset([0, 1, 2]), "all")
    assert len(splits.train) == 3
    assert splits.test is None


def test_a_subset_keeps_items_labels_and_attributes_together() -> None:
    data = Dataset(
        "toy",
        Vectors(np.arange(4, dtype=np.float32)[:, None]),
        np.array([3, 1, 3, 0]),
        ["a", "b", "c", "d"],
        attributes={"x": np.array([10, 11, 12, 13])},
    )
    taken = data.take(np.array([2, 0]))
    assert isinstance(taken.items, Vectors)
    assert taken.items.values[:, 0].tolist() == [2, 0]
    assert taken.labels.tolist() == [3, 3]
    assert taken.attributes["x"].tolist() == [12, 10]


@pytest.mark.parametrize(
    ("how", "validation", "expected"),
    [
        ("clases", 0.0, "did you mean 'classes'"),
        ("official", 0.0, "no official split"),
        ("classes", 1.5, "between 0 and 1"),
        ("classes", 0.9, "training split has"),
    ],
)
def test_each_mistake_is_named(how: str, validation: float, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        make_splits(dataset([0, 1, 2, 3]), how, validation)


def test_a_split_without_queries_is_searched_in_itself() -> None:
    """In-shop's training images are neither query nor gallery."""
    labels = np.repeat(np.arange(6), 2)
    testing = labels >= 4
    data = Dataset(
        "inshop",
        Vectors(np.zeros((12, 1), np.float32)),
        labels,
        list("abcdef"),
        split=np.where(testing, "test", "train"),
        is_query=testing & (np.arange(12) % 2 == 0),
        is_gallery=testing & (np.arange(12) % 2 == 1),
    )
    splits = make_splits(data, validation=0.5)
    assert splits.validation is not None and splits.validation.is_query is None and splits.validation.is_gallery is None
    assert splits.test is not None and splits.test.is_query is not None and splits.test.is_query.sum() == 2


def test_at_least_two_classes_are_held_out() -> None:
    splits = make_splits(dataset(list(range(12)) * 2), validation=0.01)
    assert len(classes_of(splits.validation)) == 2


def test_the_digest_changes_with_the_data() -> None:
    same, again = (make_splits(dataset([0, 1, 2, 3])).digest() for _ in range(2))
    assert same == again
    assert make_splits(dataset([0, 1, 2, 3, 3])).digest() != same
    assert make_splits(dataset([0, 1, 2, 3]), "all").digest() != same


def test_a_single_class_is_refused() -> None:
    with pytest.raises(UserError, match="only one class"):
        make_splits(dataset([0, 0, 0]))


def test_a_dataset_of_one_class_needs_another_not_another_split() -> None:
    dataset = Dataset("toy", Vectors(np.zeros((6, 1), np.float32)), np.zeros(6, np.int64), ["a"])
    with pytest.raises(UserError) as refused:
        make_splits(dataset, "all")
    assert str(refused.value) == "toy has only one class, but needs at least two classes; add classes"
