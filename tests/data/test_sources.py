"""Folders, tables and arrays: what is read, and the message for each mistake."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nearkin.data import ImageArray, ImageFiles, Vectors, as_dataset, load_dataset, make_splits
from nearkin.errors import UserError


def message(source: str | Path) -> str:
    with pytest.raises(UserError) as caught:
        load_dataset(str(source))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write_csv(folder: Path, text: str) -> Path:
    (folder / "table.csv").write_text(text, encoding="utf-8")
    return folder / "table.csv"


def save_images(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(folder / name)


class TestFolder:
    def test_classes_are_the_folders_in_order(self, photos: Path) -> None:
        dataset = load_dataset(str(photos))
        assert dataset.classes == [f"class{n}" for n in range(6)]
        assert dataset.labels.tolist() == [label for label in range(6) for _ in range(6)]
        assert isinstance(dataset.items, ImageFiles)
        assert dataset.items.paths[7] == photos / "class1" / "1.png"

    def test_numbered_classes_sort_by_number(self, tmp_path: Path) -> None:
        save_images(tmp_path, "10/a.png", "9/a.png")
        assert load_dataset(str(tmp_path)).classes == ["9", "10"]

    def test_train_and_test_folders_are_a_split(self, tmp_path: Path) -> None:
        save_images(tmp_path, "train/cat/1.png", "train/dog/1.png", "val/cat/2.png", "test/dog/2.png")
        dataset = load_dataset(str(tmp_path))
        assert dataset.classes == ["cat", "dog"]
        assert dataset.split is not None
        assert sorted(dataset.split) == ["test", "train", "train", "validation"]

    def test_images_in_deeper_folders_belong_to_the_class(self, tmp_path: Path) -> None:
        save_images(tmp_path, "cat/2024/may/1.JPG", "dog/1.png")
        assert len(load_dataset(str(tmp_path))) == 2

    def test_notes_say_what_is_left_out(self, photos: Path) -> None:
        for name in ("notes.txt", "a.csv", "z.md", "b.csv", ".DS_Store", "Thumbs.db"):
            (photos / name).touch()
        for name in ("1.heic", "2.HEIC", "boxes.xml", "readme", "._1.png", ".hidden/1.png"):
            (photos / "class0" / name).parent.mkdir(exist_ok=True)
            (photos / "class0" / name).touch()
        (photos / "old").mkdir()
        save_images(photos, "class1/2024/may/1.png", "class1/2024/2.png")
        dataset = load_dataset(str(photos))
        assert len(dataset) == 38 and dataset.classes == [f"class{n}" for n in range(6)]
        assert dataset.notes == (
            "ignored 4 files outside the class folders: a.csv, b.csv, notes.txt, …",
            "ignored 2 .heic files: not supported; convert to .jpg",
            "ignored 2 files in class folders that are not images: 1 .xml, 1 without extension",
            "ignored 1 class folder without images: old",
            "2 images in subfolders belong to the class folder above: class1/2024, class1/2024/may",
        )

    def test_a_tidy_folder_has_no_notes(self, photos: Path) -> None:
        assert load_dataset(str(photos)).notes == ()

    def test_split_folders_have_notes_too(self, tmp_path: Path) -> None:
        save_images(tmp_path, "train/cat/1.png", "train/dog/1.png", "test/dog/2.png", "test/loose.png")
        (tmp_path / "test" / "cat").mkdir()
        assert load_dataset(str(tmp_path)).notes == (
            "ignored 1 file outside the class folders: test/loose.png",
            "ignored 1 class folder without images: test/cat",
        )

    def test_the_folder_is_read_once(self, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        read: list[str] = []
        for name in ("scandir", "listdir"):
            whole = getattr(os, name)
            monkeypatch.setattr(os, name, lambda path, whole=whole: (read.append(str(path)), whole(path))[1])
        load_dataset(str(photos))
        assert sorted(read) == sorted([str(photos), *(str(photos / f"class{n}") for n in range(6))])

    def test_an_empty_class_is_named_if_too_few_are_left(self, tmp_path: Path) -> None:
        save_images(tmp_path, "cat/1.png")
        (tmp_path / "dog").mkdir()
        (tmp_path / "dog" / "1.heic").touch()
        said = message(tmp_path)
        assert f"{tmp_path / 'dog'} contains no images" in said and "1 .heic file: not supported" in said

    def test_a_note_points_to_class_folders_one_level_deeper(self, tmp_path: Path) -> None:
        save_images(tmp_path, "archive/cat/1.png", "archive/dog/1.png")
        with pytest.raises(UserError, match=f"only one class.*use {tmp_path / 'archive'}"):
            make_splits(load_dataset(str(tmp_path)))

    def test_images_without_class_folders_are_explained(self, tmp_path: Path) -> None:
        save_images(tmp_path, "1.png")
        assert "images but no class folders" in message(tmp_path)


class TestTable:
    def test_all_columns_are_read(self, tmp_path: Path) -> None:
        save_images(tmp_path, "a/1.png", "a/2.png", "b/1.png")
        file = write_csv(
            tmp_path,
            "path,label,split,is_query,is_gallery,colour\n"
            "a/1.png,cat,train,,1,red\na/2.png,cat,test,1,0,blue\nb/1.png,dog,test,no,yes,red\n",
        )
        dataset = load_dataset(str(file))
        assert dataset.labels.tolist() == [0, 0, 1]
        assert dataset.split is not None and dataset.split.tolist() == ["train", "test", "test"]
        assert dataset.is_query is not None and dataset.is_query.tolist() == [False, True, False]
        assert dataset.is_gallery is not None and dataset.is_gallery.tolist() == [True, False, True]
        assert dataset.attributes["colour"].tolist() == ["red", "blue", "red"]
        assert isinstance(dataset.items, ImageFiles) and dataset.items.paths[2] == tmp_path / "b" / "1.png"

    def test_labels_with_gaps_and_signs_keep_their_order(self, tmp_path: Path) -> None:
        dataset = load_dataset(str(write_csv(tmp_path, "path,label\nx,100\ny,-3\nz,7\n")))
        assert dataset.classes == ["-3", "7", "100"]
        assert dataset.labels.tolist() == [2, 0, 1]

    def test_an_absolute_path_into_its_folder_is_taken(self, tmp_path: Path) -> None:
        dataset = load_dataset(str(write_csv(tmp_path, f"path,label\n{tmp_path}/a b/1.png,cat\n")))
        assert isinstance(dataset.items, ImageFiles) and dataset.items.paths == [tmp_path / "a b" / "1.png"]
        assert "is not in the folder" in message(write_csv(tmp_path, f"path,label\n{tmp_path}/../1.png,cat\n"))

    def test_a_byte_order_mark_and_spaces_are_harmless(self, tmp_path: Path) -> None:
        dataset = load_dataset(str(write_csv(tmp_path, "\ufeffpath, label\nx.png, cat\n")))
        assert dataset.classes == ["cat"]

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("path,class\nx,1\n", "no column 'label'"),
            ("", "no column 'path'"),
            ("path,label\n", "no rows"),
            ("path,label,label\nx,1,2\n", "names the column 'label' twice"),
            ("path,label\nx\n", "line 2: expected 2 fields"),
            ("path,label\nx,1,2\n", "line 2: expected 2 fields"),
            ("path,label\nx,1\n,2\n", "line 3: path and label must not be empty"),
            ("path,label\n../x,1\n", "line 2: path '../x' has .. in it or is not in the folder of the CSV"),
            ("path,label\n/etc/passwd,1\n", "is not in the folder of the CSV"),
            ("path,label\na/../../x,1\n", "is not in the folder of the CSV"),
            ("path,label,split\nx,1,trian\n", "line 2: split 'trian' is not one of"),
            ("path,label,is_query\nx,1,maybe\n", "line 2: is_query 'maybe' is neither true nor false"),
        ],
    )
    def test_each_mistake_is_named(self, tmp_path: Path, text: str, expected: str) -> None:
        assert expected in message(write_csv(tmp_path, text))

    def test_another_encoding_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "table.csv").write_bytes("path,label\nx,Kätzchen\n".encode("latin-1"))
        assert "UTF-8" in message(tmp_path / "table.csv")


class TestArrays:
    def test_images_and_string_labels(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "x.npz", images=np.zeros((3, 5, 4), np.uint8), labels=["b", "a", "b"], colour=[1, 2, 3])
        dataset = load_dataset(str(tmp_path / "x.npz"))
        assert isinstance(dataset.items, ImageArray) and dataset.items.channels == 1
        assert dataset.labels.tolist() == [1, 0, 1]
        assert dataset.attributes["colour"].tolist() == [1, 2, 3]

    def test_vectors_become_float32(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "x.npz", vectors=np.ones((3, 5)), labels=[4, 4, 9])
        dataset = load_dataset(str(tmp_path / "x.npz"))
        assert isinstance(dataset.items, Vectors) and dataset.items.values.dtype == np.float32

    @pytest.mark.parametrize(
        ("arrays", "expected"),
        [
            ({"images": np.zeros((2, 4, 4), np.uint8)}, "must contain 'labels'"),
            ({"labels": [0, 1]}, "either 'images' or 'vectors'"),
            ({"images": np.full((2, 4, 4), 9.0), "labels": [0, 1]}, "must be in 0…1, got 9…9"),
            ({"images": np.zeros((2, 4, 4), np.int32), "labels": [0, 1]}, "pixels must be uint8"),
            ({"images": np.zeros((2, 4, 4, 2), np.uint8), "labels": [0, 1]}, "(n, height, width, 3)"),
            ({"vectors": np.zeros(2), "labels": [0, 1]}, "shape (n, features)"),
            ({"vectors": np.array([[0.0], [np.nan]]), "labels": [0, 1]}, "1 of 2 vectors contain NaN or infinity"),
            ({"vectors": np.zeros((2, 3)), "labels": [0, 1, 2]}, "equal lengths, but their shapes are (3,) and (2, 3)"),
            ({"vectors": np.zeros((2, 3)), "labels": [[0, 1], [1, 0]]}, "one integer or string per item"),
            ({"vectors": np.zeros((2, 3)), "labels": [0.5, 1]}, "one integer or string per item"),
            ({"vectors": np.zeros((2, 3)), "labels": [0, 1], "split": ["train", "val"]}, "split 'val' is not one of"),
        ],
    )
    def test_each_mistake_is_named(self, tmp_path: Path, arrays: dict[str, object], expected: str) -> None:
        np.savez(tmp_path / "x.npz", **arrays)  # type: ignore[arg-type]
        assert expected in message(tmp_path / "x.npz")

    def test_a_pickle_is_never_loaded(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "x.npz", images=np.array([print], dtype=object), labels=[0])
        assert "not a readable .npz" in message(tmp_path / "x.npz")

    def test_a_damaged_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "x.npz").write_bytes(b"PK\x03\x04 nothing")
        assert "readable .npz" in message(tmp_path / "x.npz")


def test_a_wrong_name_is_corrected() -> None:
    assert "did you mean 'cub200'?" in message("cub20")


def test_a_name_wins_over_a_folder_of_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_images(tmp_path, "cub200/a/1.png", "cub200/b/1.png")
    assert "was not found" in message("cub200")
    assert load_dataset("./cub200").classes == ["a", "b"]


def test_a_missing_path_is_not_mistaken_for_a_name() -> None:
    assert "file or folder photos/cats does not exist" in message("photos/cats")


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.zip").touch()
    assert "not a folder, .csv or .npz" in message(tmp_path / "x.zip")


def test_glyphs_take_sizes_and_refuse_others() -> None:
    assert len(load_dataset("glyphs:classes=4,per_class=2,size=8")) == 8
    assert "got 'clases=4'" in message("glyphs:clases=4")


def test_a_dataset_is_returned_unchanged_and_has_a_source(photos: Path) -> None:
    loaded = load_dataset(photos)
    assert as_dataset(loaded) is loaded and loaded.source == str(photos)
    made = as_dataset(replace(loaded, source=""))
    assert made.source == "<nearkin.data.dataset.Dataset of 36 items>" and made.items is loaded.items
