"""Hugging Face datasets: images and labels are found by the types of their columns, or named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from datasets import ClassLabel, DatasetDict, Features, Value
from PIL import Image

from nearkin.data import LazyImages, Vectors, as_dataset, from_hugging_face, load_dataset, make_splits
from nearkin.data.loader import input_batches, sequential
from nearkin.data.sources import load_labelled_or_flat
from nearkin.data.transforms import Preprocess
from nearkin.errors import UserError

NAMES = ["cat", "dog", "eel"]


def pets(count: int = 12, first: int = 0, **columns: Any) -> datasets.Dataset:
    """Images of many sizes; the red value of each is 20 times its index."""
    rows = range(first, first + count)
    images = [Image.new("RGB", (20 + row, 30), (20 * row, 0, 0)) for row in rows]
    features = {"image": datasets.Image(), "label": ClassLabel(names=NAMES)}
    others = {name: datasets.Dataset.from_dict({name: values}).features[name] for name, values in columns.items()}
    return datasets.Dataset.from_dict(
        {"image": images, "label": [row % 3 for row in rows], **columns}, Features({**features, **others})
    )


def reds(items: Any) -> list[int]:
    return [int(np.asarray(items.image(n))[0, 0, 0]) // 20 for n in range(len(items))]


def test_images_and_classes_are_found_and_read_when_needed(tmp_path: Path) -> None:
    pets().save_to_disk(tmp_path / "pets")
    data = datasets.load_from_disk(str(tmp_path / "pets"))
    dataset = as_dataset(data)
    assert dataset.classes == NAMES and dataset.labels.tolist() == [0, 1, 2] * 4
    assert isinstance(dataset.items, LazyImages) and reds(dataset.items) == list(range(12))
    assert dataset.source == "<datasets.arrow_dataset.Dataset of 12 items>"
    grey = Preprocess(16, 20, 1, (0.5,), (0.5,))
    batches = [list(input_batches(dataset.items, grey, sequential(12, 5), workers=workers)) for workers in (0, 2)]
    assert [len(batch) for batch in batches[0]] == [5, 5, 2]
    assert all((one == two).all() for one, two in zip(*batches, strict=True))


@pytest.mark.parametrize("saved", [pets(), DatasetDict(train=pets(8), test=pets(4, 8))])
def test_a_saved_folder_is_loaded_by_its_path(saved: Any, tmp_path: Path) -> None:
    saved.save_to_disk(tmp_path / "pets")
    dataset = load_dataset(tmp_path / "pets")
    assert reds(dataset.items) == list(range(12)) and dataset.classes == NAMES
    assert dataset.source == str(tmp_path / "pets") and dataset.name == "pets"
    assert (dataset.split is None) == isinstance(saved, datasets.Dataset)
    assert load_labelled_or_flat(tmp_path / "pets").classes == NAMES


def test_a_saved_folder_without_its_tables_is_refused(tmp_path: Path) -> None:
    pets().save_to_disk(tmp_path / "pets")
    for table in (tmp_path / "pets").glob("*.arrow"):
        table.unlink()
    with pytest.raises(UserError, match=r"cannot be read as a Hugging Face dataset .*save it again"):
        load_dataset(tmp_path / "pets")


def test_a_saved_folder_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pets().save_to_disk(tmp_path / "pets")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"pip install 'nearkin\[hub\]'"):
        load_dataset(tmp_path / "pets")


def test_strings_can_be_labels() -> None:
    data = pets().remove_columns("label").add_column("breed", ["b", "a", "b"] * 4)
    dataset = as_dataset(data)
    assert dataset.classes == ["a", "b"] and dataset.labels.tolist() == [1, 0, 1] * 4


def test_columns_with_the_default_names_are_preferred() -> None:
    dataset = as_dataset(pets().cast_column("label", Value("int64")).add_column("age", [3] * 12))
    assert dataset.classes == ["0", "1", "2"]


def test_columns_can_be_named() -> None:
    data = pets().rename_columns({"image": "img", "label": "species"}).add_column("breed", list("ab") * 6)
    dataset = from_hugging_face(data, image="img", label="breed")
    assert dataset.classes == ["a", "b"] and reds(dataset.items) == list(range(12))
    assert as_dataset(data).classes == NAMES


def test_vectors_are_loaded_into_memory() -> None:
    data = datasets.Dataset.from_dict({"features": np.eye(4).tolist(), "label": list("abba")})
    dataset = as_dataset(data)
    assert isinstance(dataset.items, Vectors) and np.array_equal(dataset.items.values, np.eye(4))


@pytest.mark.parametrize("kind", ["numpy", "torch", "transform"])
def test_a_user_defined_format_is_respected(kind: str) -> None:
    data = pets()
    if kind == "transform":
        data.set_transform(lambda rows: {"image": [image.resize((5, 5)) for image in rows["image"]]})
    else:
        data = data.with_format(kind)
    dataset = as_dataset(data)
    assert reds(dataset.items) == list(range(12)) and dataset.labels.tolist() == [0, 1, 2] * 4
    assert not isinstance(dataset.items, Vectors)
    assert dataset.items.image(3).size == ((5, 5) if kind == "transform" else (23, 30))  # type: ignore[union-attr]


def test_a_transform_may_read_all_columns() -> None:
    data = pets().with_transform(
        lambda rows: {"image": [Image.new("L", (1 + label, 1)) for label in rows["label"]], "label": rows["label"]}
    )
    items = as_dataset(data).items
    assert isinstance(items, LazyImages) and [items.image(n).size[0] for n in range(3)] == [1, 2, 3]


def test_splits_are_an_official_split() -> None:
    splits = make_splits(as_dataset(DatasetDict(train=pets(6), validation=pets(4, 6), test=pets(2, 10))))
    assert splits.validation is not None and splits.test is not None
    assert [reds(split.items) for split in (splits.train, splits.validation, splits.test)] == [
        [0, 1, 2, 3, 4, 5],
        [6, 7, 8, 9],
        [10, 11],
    ]
    assert splits.test.labels.tolist() == [1, 2] and splits.test.classes == NAMES
    assert splits.train.source == "<datasets.dataset_dict.DatasetDict of 12 items>"


def test_a_single_split_is_data_without_a_split() -> None:
    dataset = as_dataset(DatasetDict(train=pets()))
    assert dataset.split is None and len(dataset) == 12


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (
            pets()
            .add_column("other", [0] * 12)
            .cast_column("other", ClassLabel(names=["x"]))
            .rename_column("label", "kind"),
            "several columns that could be the label (kind, other); choose one of image, kind, other: "
            'nearkin.data.from_hugging_face(dataset, label="kind")',
        ),
        (pets().remove_columns("label"), "no column for the label"),
        (pets().remove_columns("image"), "no column for the image"),
        (pets().select([]), "is empty"),
        (DatasetDict(train=pets(), unsupervised=pets()), "got 'unsupervised'"),
        (pets().to_iterable_dataset(), "can only be read in order; pass a map-style dataset"),
    ],
)
def test_each_mistake_is_named(data: Any, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        as_dataset(data)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_a_column_that_does_not_exist_is_named() -> None:
    with pytest.raises(UserError, match="has no column 'breed'; it has image, label"):
        from_hugging_face(pets(), label="breed")


def test_items_without_a_label_are_refused() -> None:
    table = datasets.Dataset.from_dict({"image": [Image.new("L", (4, 4))] * 2, "label": [-1, 0]})
    data = table.cast(Features({"image": datasets.Image(), "label": ClassLabel(names=NAMES)}))
    with pytest.raises(UserError, match="column 'label': label -1 is not one of the 3 classes; leave such items out"):
        as_dataset(data)


def test_nothing_is_imported_to_recognise_them() -> None:
    code = "import nearkin.data as d, sys; d.as_dataset(([[0.0]], [0])); print({'datasets', 'torch'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "set()\n"
