"""Torch datasets of (image, label): torchvision's, subsets, concatenations, users' own; and mistakes in them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, IterableDataset, Subset, TensorDataset, random_split
from torchvision.datasets import MNIST, ImageFolder
from torchvision.transforms import v2

from nearkin.data import ImageArray, ImageFiles, LazyImages, Vectors, as_dataset, make_splits
from nearkin.data.items import Items
from nearkin.data.loader import Draw, input_batches, sequential
from nearkin.data.summary import describe_splits
from nearkin.data.thumbnails import thumbnail
from nearkin.data.transforms import Preprocess
from nearkin.errors import UserError
from nearkin.models import EmbeddingModel, ModelSpec
from nearkin.models.embed import cached_features

SMALL = Preprocess(16, 20, 3, (0.5,) * 3, (0.5,) * 3)
TO_TENSOR = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])


NAMES = ("cat", "dog", "eel")


class Pairs(torch.utils.data.Dataset[Any]):
    """Twelve images of three classes and of many sizes; the item is ``change(row, image, label)``."""

    def __init__(self, change: Callable[[int, Image.Image, int], Any] = lambda _n, p, y: (p, y)):
        self.change = change
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 12

    def __getitem__(self, row: int) -> Any:
        self.asked.append(row)
        return self.change(row, Image.new("RGB", (20 + row, 30), (20 * row, 0, 0)), row % 3)


class WithTargets(Pairs):
    classes: Any = NAMES
    targets = torch.arange(12) % 3


def pixels(items: Items, index: int) -> int:
    """The number of an item of `Pairs`, from the red value of its image."""
    assert not isinstance(items, Vectors)
    return int(np.asarray(items.image(index))[0, 0, 0]) // 20


class TestKinds:
    def test_an_untransformed_image_folder_is_read_as_its_files(self, photos: Path) -> None:
        found, expected = as_dataset(ImageFolder(photos)), as_dataset(photos)
        assert isinstance(found.items, ImageFiles) and found.items.names() == expected.items.names()
        assert found.classes == expected.classes and found.labels.tolist() == expected.labels.tolist()
        assert found.name == "photos"
        assert found.source == "<torchvision.datasets.folder.ImageFolder of 36 items>"

    def test_a_damaged_file_in_an_image_folder_is_found_only_by_the_check(self, photos: Path) -> None:
        (photos / "class0" / "0.png").write_bytes(b"broken")
        assert len(as_dataset(ImageFolder(photos))) == 36

    def test_subsets_and_concatenations_of_image_folders_too(self, photos: Path) -> None:
        folder = ImageFolder(photos)
        half = as_dataset(Subset(folder, [35, 0]))
        assert isinstance(half.items, ImageFiles) and half.items.names() == [
            folder.samples[35][0],
            folder.samples[0][0],
        ]
        assert half.labels.tolist() == [5, 0] and half.name == "photos"
        both = as_dataset(ConcatDataset([Subset(folder, [35, 0]), folder]))
        assert isinstance(both.items, ImageFiles) and len(both) == 38 and both.classes == folder.classes
        assert both.labels.tolist()[:3] == [5, 0, 0]

    @pytest.mark.parametrize("kind", ["transform", "loader", "subclass"])
    def test_a_changed_image_folder_is_read_through_its_items(self, photos: Path, kind: str) -> None:
        class Darker(ImageFolder):
            def __getitem__(self, index: int) -> Any:
                return Image.new("L", (3, 3)), super().__getitem__(index)[1]

        black = Image.new("L", (3, 3))
        folder = {
            "transform": lambda: ImageFolder(photos, transform=lambda _: black),
            "loader": lambda: ImageFolder(photos, loader=lambda _: black),
            "subclass": lambda: Darker(photos),
        }[kind]()
        dataset = as_dataset(folder)
        assert isinstance(dataset.items, LazyImages) and dataset.items.image(20).size == (3, 3)
        assert dataset.labels.tolist() == folder.targets and dataset.classes == folder.classes

    def test_transformed_labels_are_used(self, photos: Path) -> None:
        dataset = as_dataset(ImageFolder(photos, target_transform=lambda label: "even" if label % 2 == 0 else "odd"))
        assert (
            dataset.classes == ["even", "odd"]
            and dataset.labels.tolist() == [0] * 6 + [1] * 6 + dataset.labels.tolist()[:12] * 2
        )

    def test_torchvision_arrays_stay_in_memory(self) -> None:
        digits = MNIST.__new__(MNIST)  # without a download
        digits.data, digits.targets = torch.arange(4 * 36, dtype=torch.uint8).view(4, 6, 6), torch.tensor([3, 1, 3, 0])
        digits.transform = digits.target_transform = digits.transforms = None
        dataset = as_dataset(Subset(digits, [2, 1]))
        assert isinstance(dataset.items, ImageArray) and np.array_equal(dataset.items.pixels, digits.data[[2, 1]])
        assert [dataset.classes[label] for label in dataset.labels] == ["3 - three", "1 - one"]

    def test_tensors_stay_in_memory(self) -> None:
        vectors = as_dataset(TensorDataset(torch.eye(4), torch.tensor([0, 1, 1, 0])))
        assert isinstance(vectors.items, Vectors) and vectors.labels.tolist() == [0, 1, 1, 0]
        images = as_dataset(TensorDataset(torch.ones(4, 3, 6, 9), torch.tensor([0, 1, 1, 0])))
        assert isinstance(images.items, ImageArray) and images.items.pixels.shape == (4, 6, 9, 3)
        assert (images.items.pixels == 255).all()

    @pytest.mark.parametrize(
        "form", [lambda p: p, np.asarray, TO_TENSOR, v2.PILToTensor(), lambda p: np.asarray(p) / 255]
    )
    def test_images_of_any_kind_and_size(self, form: Callable[[Image.Image], Any]) -> None:
        dataset = as_dataset(Pairs(lambda _n, p, y: (form(p), y)))
        assert isinstance(dataset.items, LazyImages)
        assert [dataset.items.image(row).size for row in (0, 11)] == [(20, 30), (31, 30)]
        assert [pixels(dataset.items, row) for row in range(12)] == list(range(12))

    def test_vectors_are_loaded_into_memory(self) -> None:
        dataset = as_dataset(Pairs(lambda n, _p, y: (torch.full((5,), n), y)))
        assert isinstance(dataset.items, Vectors) and dataset.items.values[:, 0].tolist() == list(range(12))

    def test_a_list_of_pairs_is_a_dataset(self) -> None:
        dataset = as_dataset([(Image.new("L", (4, 4)), "cat"), (Image.new("L", (4, 4)), "dog")])
        assert dataset.classes == ["cat", "dog"] and dataset.source == "<list of 2 items>"


class TestLabels:
    @pytest.mark.parametrize("form", [int, str, torch.tensor, np.int64, lambda label: torch.tensor([label])])
    def test_labels_of_any_kind(self, form: Callable[[int], Any]) -> None:
        dataset = as_dataset(Pairs(lambda _n, p, y: (p, form(y))))
        assert dataset.labels.tolist() == [0, 1, 2] * 4 and dataset.classes == ["0", "1", "2"]

    def test_targets_are_used_without_reading_all_images(self) -> None:
        data = WithTargets()
        dataset = as_dataset(data)
        assert dataset.labels.tolist() == [0, 1, 2] * 4 and dataset.classes == ["cat", "dog", "eel"]
        assert set(data.asked) == {0, 6, 11}

    @pytest.mark.parametrize("targets", [["cat"] * 12, [2] * 12, ["cat", "dog", "eel"], {0: 1}, 3, [[0], [0, 1]]])
    def test_an_attribute_targets_that_is_something_else_is_ignored(self, targets: Any) -> None:
        data = Pairs()
        data.targets = targets  # type: ignore[attr-defined]
        dataset = as_dataset(data)
        assert dataset.labels.tolist() == [0, 1, 2] * 4 and set(data.asked) == set(range(12))

    @pytest.mark.parametrize("classes", [3, ["cat"], np.array(NAMES), None])
    def test_an_attribute_classes_that_is_something_else_is_ignored(self, classes: Any) -> None:
        data = WithTargets()
        data.classes = classes
        assert as_dataset(ConcatDataset([data, data])).classes == ["0", "1", "2"]

    def test_a_random_split_keeps_the_classes_of_the_full_dataset(self) -> None:
        half, _ = random_split(WithTargets(), [0.5, 0.5], torch.Generator().manual_seed(0))
        dataset = as_dataset(half)
        assert dataset.classes == ["cat", "dog", "eel"]
        assert [pixels(dataset.items, n) % 3 for n in range(6)] == dataset.labels.tolist()

    def test_many_labels_are_read_by_workers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("nearkin.data.loader.AT_ONCE", 5)
        data = Pairs()
        assert as_dataset(data).labels.tolist() == [0, 1, 2] * 4
        assert not data.asked.count(7) - 2  # only for the fingerprint: workers read the labels


class TestUse:
    def test_batches_contain_the_images(self) -> None:
        items = as_dataset(WithTargets()).items
        (batch,) = input_batches(items, SMALL, [Draw(np.array([7, 2]))], workers=0)
        assert batch.shape == (2, 3, 16, 16) and batch[:, 0, 0, 0].tolist() == [140, 40]
        by_workers = list(input_batches(items, SMALL, sequential(12, 5), "crop-flip", workers=2))
        here = list(input_batches(items, SMALL, sequential(12, 5), "crop-flip", workers=0))
        assert all(torch.equal(one, two) for one, two in zip(by_workers, here, strict=True))

    @pytest.mark.parametrize(
        "draw", [lambda: int(torch.randint(256, ())), lambda: random.randrange(256), lambda: np.random.randint(256)]
    )
    def test_its_own_random_transform_depends_on_the_seed(self, draw: Callable[[], int]) -> None:
        items = as_dataset(WithTargets(lambda _n, _p, y: (np.full((16, 16), draw(), np.uint8), y))).items
        before = (random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist())

        def red(seed: int, workers: int) -> list[int]:
            (batch,) = input_batches(items, SMALL, [Draw(np.arange(12), seed)], workers=workers)
            drawn: list[int] = batch[:, 0, 0, 0].tolist()
            return drawn

        assert red(1, 0) == red(1, 2) != red(2, 0)
        assert len(set(red(1, 0))) > 3
        assert before == (random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist())

    def test_it_is_embedded_summarised_and_drawn(self) -> None:
        dataset = as_dataset(WithTargets())
        model = EmbeddingModel(ModelSpec("small", dim=4, preprocess=SMALL))
        assert cached_features(model, dataset.items, workers=0).shape == (12, model.width)
        lines = describe_splits(make_splits(dataset))
        assert lines[0] == "data          WithTargets: 12 images, 3 classes"
        assert lines[-1] == "  size        20×30 to 31×30 pixels, median 26×30"
        image = thumbnail(dataset.items, 9, 12)
        assert image is not None and image.size == (12, 12) and image.getpixel((0, 0)) == (180, 0, 0)

    def test_an_image_that_cannot_be_read_has_no_thumbnail(self) -> None:
        data = WithTargets(lambda n, p, y: (None if n == 9 else p, y))
        assert thumbnail(as_dataset(data).items, 9, 12) is None

    def test_another_dataset_has_another_digest(self) -> None:
        def digest(data: Any) -> str:
            return make_splits(as_dataset(data)).digest()

        same = digest(Pairs())
        assert digest(Pairs()) == same
        assert digest(Pairs(lambda _n, p, y: (p, 2 - y))) != same
        assert digest(Pairs(lambda _n, p, y: (p.crop((0, 0, 9, 9)), y))) != same
        assert digest(Subset(Pairs(), range(9))) != same

    def test_images_that_differ_each_time_are_not_in_the_digest(self) -> None:
        ever = iter(range(10**6))
        restless = [Pairs(lambda _n, _p, y: (np.full((4, 4), next(ever) % 256, np.uint8), y)) for _ in range(2)]
        first, again = (make_splits(as_dataset(data)).digest() for data in restless)
        assert first == again

    def test_splits_in_a_dictionary(self) -> None:
        dataset = as_dataset({"train": WithTargets(), "test": Subset(WithTargets(), [4, 2])})
        splits = make_splits(dataset)
        assert splits.test is not None and splits.test.labels.tolist() == [1, 2]
        assert [pixels(splits.test.items, n) for n in range(2)] == [4, 2]
        assert [pixels(splits.train.items, n) for n in range(12)] == list(range(12))


def boom(row: int, image: Image.Image, label: int) -> Any:
    if row == 8:
        raise RuntimeError("no such\n  shard")
    return image, label


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield Image.new("L", (4, 4)), 0


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (Pairs(lambda _n, p, _y: p), " is of type Image, not a pair (image, label)"),
        (Pairs(lambda _n, p, _y: {"image": p}), " is of type dict, not a pair (image, label)"),
        (Pairs(lambda n, p, y: (p, y, n)), " is a tuple of 3, not a pair (image, label)"),
        (
            Pairs(lambda _n, p, y: (p, [0, y])),
            "string per item, got int64 of shape (12, 2)",
        ),
        (Pairs(lambda n, p, _y: (p, [0] * (1 + n % 2))), "one integer or string per item"),
        (WithTargets(lambda _n, _p, y: (torch.zeros(3, 4, 4) - 2, y)), "must be in 0…1, got -2…-2: do not normalise"),
        (Pairs(lambda _n, p, _y: (p, 0.5)), "one integer or string per item, got float64 of shape (12,)"),
        (Pairs(lambda _n, p, _y: (p, None)), "12 of 12 labels are NaN or None"),
        (
            Pairs(lambda _n, _p, y: ("a.jpg", y)),
            "item 0 of <test_torch_dataset.Pairs of 12 items> can",
        ),
        (Pairs(lambda _n, _p, y: (torch.eye(4) - 2, y)), "must be in 0…1, got -2…-1: do not normalise"),
        (Pairs(lambda n, _p, y: (torch.ones(2 + n), y)), "vectors must have the same length"),
        (Pairs(lambda _n, _p, y: (torch.tensor([np.nan]), y)), "12 of 12 vectors contain NaN or infinity"),
        (Pairs(boom), "item 8 of <test_torch_dataset.Pairs of 12 items> cannot be read (RuntimeError: no such shard)"),
        (Subset(Pairs(), []), "<torch.utils.data.dataset.Subset of 0 items> is empty"),
        (Endless(), "a test_torch_dataset.Endless can only be read in order; pass a map-style dataset"),
    ],
)
def test_each_mistake_is_named(data: Any, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        as_dataset(data)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_one_class_is_refused_when_it_is_split() -> None:
    with pytest.raises(UserError, match="Pairs has only one class"):
        make_splits(as_dataset(Pairs(lambda _n, p, _y: (p, 0))))


def test_an_item_that_fails_in_a_worker_is_named() -> None:
    items = as_dataset(WithTargets(boom)).items
    with pytest.raises(UserError, match=r"item 8 of .* cannot be read \(RuntimeError: no such shard\)"):
        list(input_batches(items, SMALL, sequential(12, 4), workers=2))
