"""Decoded images are cropped as the transforms crop them, reproducibly, however a batch is shared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from nearkin.data import ImageFiles
from nearkin.data.items import DecodedImages
from nearkin.data.loader import crop

EVERYTHING = np.arange(6)


@pytest.fixture
def images() -> DecodedImages:
    squares = torch.randint(0, 256, (9, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return DecodedImages(ImageFiles([Path(f"{i}.png") for i in range(6)]), squares, np.array([8, 1, 0, 7, 3, 4]))


def test_without_augmentation_the_centre_is_cropped(images: DecodedImages) -> None:
    assert torch.equal(crop(images, np.array([2, 0]), 4, "none", seed=5), images.squares[[0, 8], :, 2:6, 2:6])


def test_every_crop_is_a_window_of_its_image_perhaps_flipped(images: DecodedImages) -> None:
    crops = crop(images, EVERYTHING, 5, "crop-flip", seed=3)
    for row, found in zip(images.rows, crops, strict=True):
        windows = [images.squares[row, :, top : top + 5, left : left + 5] for top in range(4) for left in range(4)]
        assert any(torch.equal(found, seen) for window in windows for seen in (window, window.flip(-1)))


def test_crops_reach_every_corner_and_half_are_flipped(images: DecodedImages) -> None:
    gradient = torch.arange(64, dtype=torch.uint8).view(1, 1, 8, 8)
    one = DecodedImages(images.files, gradient, np.zeros(4000, dtype=np.int64))
    crops = crop(one, np.arange(4000), 6, "crop-flip", seed=0)[:, 0].long()
    flipped = crops[:, 0, 0] > crops[:, 0, -1]
    corner = torch.minimum(crops[:, 0, 0], crops[:, 0, -1])
    assert 0.45 < flipped.float().mean() < 0.55
    assert sorted(corner.unique().tolist()) == [0, 1, 2, 8, 9, 10, 16, 17, 18]
    assert corner.bincount().max() < 1.3 * 4000 / 9


def test_a_shared_batch_is_cropped_like_a_whole_one(images: DecodedImages) -> None:
    whole = crop(images, EVERYTHING, 5, "crop-flip", seed=3)
    shares = [crop(images, EVERYTHING[:3], 5, "crop-flip", 3), crop(images, EVERYTHING[3:], 5, "crop-flip", 3, place=3)]
    assert torch.equal(torch.cat(shares), whole)
    assert not torch.equal(crop(images, EVERYTHING, 5, "crop-flip", seed=4), whole)


def test_a_subset_is_cropped_from_the_same_squares(images: DecodedImages) -> None:
    assert torch.equal(crop(images.take(np.array([4, 1])), np.array([1]), 8, "none", 0), images.squares[[1]])
