"""An image in memory is the same image in every layout and number format."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from nearkin.data.pixels import as_image

RGB = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
GREY = RGB[..., 0]


@pytest.mark.parametrize(
    "value",
    [
        Image.fromarray(RGB),
        RGB,
        RGB / 255,
        (RGB / 255).astype(np.float32),
        RGB.transpose(2, 0, 1),
        torch.from_numpy(RGB).permute(2, 0, 1),
        (torch.from_numpy(RGB).permute(2, 0, 1) / 255).requires_grad_(),
    ],
)
def test_a_colour_image_in_any_form(value: object) -> None:
    assert np.array_equal(np.asarray(as_image(value)), RGB)


@pytest.mark.parametrize(
    "value", [Image.fromarray(GREY), GREY, GREY[None], GREY[..., None], torch.from_numpy(GREY)[None] / 255]
)
def test_a_grey_image_in_any_form(value: object) -> None:
    assert np.array_equal(np.asarray(as_image(value)), np.stack([GREY] * 3, axis=-1))


def test_if_both_ends_could_be_channels_tensors_have_them_first() -> None:
    assert as_image(np.zeros((3, 8, 1))).size == (8, 3)
    assert as_image(torch.zeros(3, 8, 1)).size == (1, 8)


def test_overshoot_from_resizing_is_clipped() -> None:
    assert np.asarray(as_image(np.array([[-0.1, 0.5, 1.1]])))[0, :, 0].tolist() == [0, 128, 255]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.full((3, 4, 4), -1.0), "must be in 0…1, got -1…-1: do not normalise"),
        (np.full((4, 4), np.nan), "must be in 0…1, got nan…nan"),
        (np.zeros((4, 4), np.int64), "pixels must be uint8"),
        (np.zeros((5, 4, 5)), "no dimension of shape"),
        (np.zeros((2, 3, 4, 4)), "an array of shape"),
        (np.zeros((0, 4)), "an array of shape"),
    ],
)
def test_each_mistake_is_named(value: object, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        as_image(value)
