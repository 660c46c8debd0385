"""Images in memory: converts Pillow images, arrays and tensors to eight-bit RGB; raises ValueError if it cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from nearkin.data.images import to_rgb

Array = npt.NDArray[Any]
CHANNELS = (1, 3, 4)  # grey, RGB, RGBA
OVERSHOOT = 0.5  # resizing may leave 0…1 by this much; normalised pixels leave it further


def as_image(value: Any) -> Image.Image:
    """Converts an image in memory to upright eight-bit RGB.

    Args:
        value: a Pillow image, an array (height, width[, channels]) or a tensor ([channels,] height, width), uint8 or
            floating point in 0…1.

    >>> as_image(np.zeros((6, 9, 1))).size
    (9, 6)
    """
    if isinstance(value, Image.Image):
        return to_rgb(value)
    pixels = as_array(value)
    if pixels.ndim not in (2, 3) or not pixels.size:
        raise ValueError(f"an array of shape {pixels.shape} is not an image")
    if pixels.ndim == 3:
        pixels = channels_last(pixels, CHANNELS, is_tensor=hasattr(value, "detach"))
    return to_rgb(Image.fromarray(eight_bit(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)))


def as_array(value: Any) -> Array:
    """Converts an array, a tensor on any device or nested lists to a NumPy array."""
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def channels_last(pixels: Array, known: tuple[int, ...], is_tensor: bool = False) -> Array:
    """Moves the channels to the end: (…, height, width, channels). ``known`` are possible numbers of channels.

    If both ends could be channels, takes the first dimension of a tensor and the last of an array.

    >>> channels_last(np.zeros((5, 3, 8, 6)), known=(1, 3)).shape
    (5, 8, 6, 3)
    """
    for axis in (-3, -1) if is_tensor else (-1, -3):
        if pixels.shape[axis] in known:
            return np.moveaxis(pixels, axis, -1)
    raise ValueError(f"no dimension of shape {pixels.shape} is {' or '.join(map(str, known))} channels")


def eight_bit(pixels: Array) -> npt.NDArray[np.uint8]:
    """Scales floating-point pixels from 0…1 to 0…255; returns uint8 unchanged.

    >>> eight_bit(np.array([0.0, 0.5, 1.0])).tolist()
    [0, 128, 255]
    """
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype.kind not in "bf":
        raise ValueError(f"pixels must be uint8 (0…255) or floating point (0…1), got {pixels.dtype}")
    low, high = float(pixels.min()), float(pixels.max())
    if not (low >= -OVERSHOOT and high <= 1 + OVERSHOOT):  # also for NaN
        raise ValueError(
            f"floating-point pixels must be in 0…1, got {low:.3g}…{high:.3g}: do not normalise them, "
            "the model does that itself"
        )
    return np.rint(np.clip(pixels, 0, 1) * 255.0).astype(np.uint8)
