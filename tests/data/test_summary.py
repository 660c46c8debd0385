"""The summary of the data before training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image

from nearkin.data import Dataset, Vectors, load_dataset, make_splits, summary
from nearkin.data.hierarchy import collapse_training
from nearkin.data.images import image_size
from nearkin.data.summary import describe_splits


def numbered(labels: list[int], split: list[str] | None = None) -> Dataset:
    items = Vectors(np.zeros((len(labels), 3), np.float32))
    parts = None if split is None else np.array(split)
    return Dataset("toy", items, np.array(labels), [f"c{n}" for n in range(max(labels) + 1)], parts)


def test_items_and_classes_of_every_split_are_counted(photos: Path) -> None:
    for number in range(6, 10):
        Image.new("RGB", (30 * number, 40)).save(photos / "class0" / f"{number}.png")
    (photos / "todo.txt").touch()
    lines = describe_splits(make_splits(load_dataset(str(photos)), "first-half"))
    assert lines == [
        "data          photos: 40 images, 6 classes",
        "  train       22 images, 3 classes",
        "  test        18 images, 3 classes (unseen in training)",
        "  size        20×24 to 270×40 pixels, median 20×24",
        "  note        ignored 1 file outside the class folders: todo.txt",
    ]


def test_validation_and_test_classes_are_listed_separately() -> None:
    _, train, validation, test, _ = describe_splits(make_splits(numbered(list(range(24)) * 50), validation=0.25))
    assert train == "  train       450 vectors,  9 classes"
    assert validation == "  validation  150 vectors,  3 classes (held out to choose the model)"
    assert test == "  test        600 vectors, 12 classes (unseen in training)"


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        (["train", "train", "test", "test"], "same classes as train"),
        (["train", "train", "train", "test"], "same classes as train"),
    ],
)
def test_test_classes_that_occur_in_training_are_mentioned(split: list[str], expected: str) -> None:
    assert expected in describe_splits(make_splits(numbered([0, 1, 0, 1], split)))[2]


def test_partly_new_test_classes_are_mentioned() -> None:
    data = numbered([0, 1, 1, 2], ["train", "train", "test", "test"])
    assert describe_splits(make_splits(data))[2].endswith("2 vectors, 2 classes (some also in train)")


def test_merged_classes_are_counted_as_the_original_classes() -> None:
    data, train, *_ = describe_splits(collapse_training(make_splits(numbered(list(range(8)) * 2))))
    assert data.endswith("16 vectors, 8 classes")
    assert train.endswith("8 vectors, 4 classes (merged into random pairs)")


def test_sizes_of_many_images_are_sampled(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "SAMPLED", 5)
    opened: list[Path] = []
    monkeypatch.setattr(summary, "image_size", lambda path: opened.append(path) or image_size(path))
    lines = describe_splits(make_splits(load_dataset(str(photos))))
    assert lines[-1] == "  size        20×24 pixels (5 sampled)"
    assert len({path.parent for path in opened}) == 5  # spread over the classes


def test_the_size_is_that_of_the_upright_image(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    Image.new("RGB", (40, 30)).save(tmp_path / "x.jpg", exif=exif)
    assert image_size(tmp_path / "x.jpg") == (30, 40)
