"""Items and labels in memory: what is accepted, and the message for each mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from nearkin.data import Dataset, ImageArray, ImageFiles, LazyImages, Vectors, as_dataset, make_splits
from nearkin.errors import UserError

RGB = np.random.default_rng(0).integers(0, 256, (4, 6, 9, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    "x", [np.eye(4), torch.eye(4), np.eye(4).tolist(), np.eye(4, dtype=int), pd.DataFrame(np.eye(4))]
)
def test_vectors(x: Any) -> None:
    items = as_dataset((x, [0, 0, 1, 1])).items
    assert isinstance(items, Vectors) and items.values.dtype == np.float32
    assert np.array_equal(items.values, np.eye(4))


@pytest.mark.parametrize(
    "x",
    [RGB, RGB / 255, RGB.transpose(0, 3, 1, 2), torch.from_numpy(RGB).permute(0, 3, 1, 2) / 255, torch.from_numpy(RGB)],
)
def test_colour_images(x: Any) -> None:
    items = as_dataset((x, [0, 0, 1, 1])).items
    assert isinstance(items, ImageArray) and items.size == (9, 6)
    assert np.array_equal(items.pixels, RGB)


@pytest.mark.parametrize("x", [RGB[..., 0], RGB[..., :1], torch.from_numpy(RGB[..., 0])[:, None]])
def test_grey_images(x: Any) -> None:
    items = as_dataset((x, [0, 0, 1, 1])).items
    assert isinstance(items, ImageArray) and items.channels == 1
    assert np.array_equal(items.pixels, RGB[..., 0])


def test_a_list_of_paths_is_read_from_the_files(photos: Path) -> None:
    paths = [str(path) for path in sorted(photos.glob("*/*.png"))]
    items = as_dataset((paths, [Path(path).parent.name for path in paths])).items
    assert isinstance(items, ImageFiles) and items.names() == paths


def test_a_list_of_images_may_have_many_sizes() -> None:
    images = [Image.new("L", (width, 5)) for width in (3, 8)]
    items = as_dataset((images, [0, 1])).items
    assert isinstance(items, LazyImages)
    assert [items.image(n).size for n in range(2)] == [(3, 5), (8, 5)]
    arrays = as_dataset(([np.zeros((5, 3)), np.zeros((5, 8))], [0, 1])).items
    assert isinstance(arrays, LazyImages) and arrays.image(1).size == (8, 5)


@pytest.mark.parametrize(
    ("y", "classes", "labels"),
    [
        ([7, 5, 7], ["5", "7"], [1, 0, 1]),
        (np.array([[7.0], [5.0], [7.0]]), ["5", "7"], [1, 0, 1]),
        (torch.tensor([10, 9, 10]), ["9", "10"], [1, 0, 1]),
        ([torch.tensor(1), torch.tensor(0), torch.tensor(1)], ["0", "1"], [1, 0, 1]),
        ([True, False, True], ["0", "1"], [1, 0, 1]),
        (pd.Series(["cat", "ant", "cat"]), ["ant", "cat"], [1, 0, 1]),
    ],
)
def test_labels_of_any_kind(y: Any, classes: list[str], labels: list[int]) -> None:
    dataset = as_dataset((np.zeros((3, 2)), y))
    assert dataset.classes == classes and dataset.labels.tolist() == labels


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        (np.zeros((2, 3)), [0, 1, 2], "has 3 labels for 2 items"),
        (np.zeros((0, 3)), [], "has no items"),
        (np.float64(3), [0], "has no items"),
        (np.zeros(2), [0, 1], "numbers of shape (n, features), got float64 of shape (2,)"),
        (np.zeros((2, 3, 4, 4, 4)), [0, 1], "cannot be images (not a stack of images)"),
        (np.zeros((2, 5, 4, 4)), [0, 1], "no dimension of shape (2, 5, 4, 4) is 1 or 3 channels"),
        (np.zeros((2, 4, 4), int), [0, 1], "pixels must be uint8 (0…255) or floating point (0…1), got int64"),
        (np.full((2, 4, 4), 200.0), [0, 1], "must be in 0…1, got 200…200"),
        (np.array([[0.0], [np.nan]]), [0, 1], "1 of 2 vectors contain NaN or infinity, the first in row 1"),
        (np.array([[0.0], [np.inf]]), [0, 1], "1 of 2 vectors contain NaN or infinity, the first in row 1"),
        (np.array([[0.0], [1e300]]), [0, 1], "1 of 2 vectors contain NaN or infinity, the first in row 1"),
        ([[1.0], [1.0, 2.0]], [0, 1], "vectors must have the same length"),
        (np.array([["a"], ["b"]]), [0, 1], "must be numbers"),
        (np.zeros((2, 3)), [0.5, 1], "one integer or string per item, got float64 of shape (2,)"),
        (np.zeros((2, 3)), [np.nan, 1], "1 of 2 labels are NaN or None; give every item a label"),
        (np.zeros((2, 3)), [None, 1], "1 of 2 labels are NaN or None"),
        (np.zeros((2, 3)), [[0, 1], [1, 0]], "one integer or string per item, got int64 of shape (2, 2)"),
        (np.zeros((2, 3)), [[0], [0, 1]], "one integer or string per item, got lists of different lengths"),
    ],
)
def test_each_mistake_is_named(x: Any, y: Any, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        as_dataset((x, y))
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_one_class_is_refused_when_it_is_split() -> None:
    with pytest.raises(UserError, match="arrays has only one class"):
        make_splits(as_dataset((np.zeros((3, 2)), ["cat"] * 3)))


def test_arrays_cannot_be_loaded_again_but_are_identified() -> None:
    def digest(x: Any) -> str:
        return make_splits(as_dataset((x, [0, 1, 2, 3]))).digest()

    assert as_dataset((RGB, [0, 1, 2, 3])).source == "<numpy.ndarray of 4 items>"
    with pytest.raises(UserError, match=r"trained on an object, <numpy.ndarray of 4 items>.*nearkin.evaluate"):
        as_dataset("<numpy.ndarray of 4 items>")
    assert digest(RGB) == digest(RGB.copy()) != digest(255 - RGB)


def test_a_dictionary_of_splits_is_an_official_split() -> None:
    dataset = as_dataset({"train": (np.zeros((3, 2)), ["b", "a", "b"]), "val": (np.ones((2, 2)), ["c", "a"])})
    assert isinstance(dataset, Dataset) and dataset.classes == ["a", "b", "c"]
    assert dataset.labels.tolist() == [1, 0, 1, 2, 0]
    assert dataset.split is not None and dataset.split.tolist() == ["train"] * 3 + ["validation"] * 2
    assert isinstance(dataset.items, Vectors) and dataset.items.values[:, 0].tolist() == [0, 0, 0, 1, 1]
    assert dataset.source == "<dict of 5 items>"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"train": (np.zeros((2, 2)), [0, 1]), "extra": (np.zeros((2, 2)), [0, 1])}, "got 'extra'; rename it"),
        ({"train": (np.zeros((2, 2)), [0, 1]), "test": (np.zeros((2, 3)), [0, 1])}, "different kinds or shapes"),
        ({"train": (RGB, [0] * 4), "test": (RGB[:, :3], [0] * 4)}, "different kinds or shapes"),
        ({"train": (RGB, [0] * 4), "test": (np.zeros((2, 3)), [0, 1])}, "different kinds or shapes"),
        ({}, "has no splits"),
        (iter([(RGB[0], 0)]), "a builtins.list_iterator can only be read in order; pass a map-style dataset"),
        (7, "a builtins.int is not data"),
        (np.zeros((5, 3)), "item 0 of <numpy.ndarray of 5 items> is of type ndarray, not a pair (image, label)"),
    ],
)
def test_what_is_not_data_is_refused(data: Any, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        as_dataset(data)
    assert expected in str(caught.value)
