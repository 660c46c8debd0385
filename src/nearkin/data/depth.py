"""Converts images with more than eight bits per value to eight bits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from PIL import Image


def eight_bits(image: Image.Image) -> Image.Image:
    """Drops the lower eight of sixteen bits; scales values of unknown range (modes I and F) as `_range` says.

    >>> eight_bits(Image.new("I;16", (1, 1), 65535)).getpixel((0, 0))
    255
    """
    low, per_step = (0.0, 256.0) if image.mode.startswith("I;16") else _range(image)
    return Image.fromarray(np.concatenate([((values - low) / per_step).astype(np.uint8) for values in _strips(image)]))


def _range(image: Image.Image) -> tuple[float, float]:
    """Returns the value that becomes 0 and the size of one step.

    Integers in 0…255 are taken as eight bits, integers in 0…65,535 as sixteen; other values are scaled from their
    minimum to their maximum.
    """
    low, high = (float(end) for end in image.getextrema())  # type: ignore[arg-type]
    if low >= 0 and high <= 65535 and all((values == np.round(values)).all() for values in _strips(image)):
        return 0.0, 1.0 if high <= 255 else 257.0
    return low, max(high - low, 1e-12) / 255


def _strips(image: Image.Image, rows: int = 256) -> Iterator[npt.NDArray[np.float64]]:
    """Yields a few rows (rows, width) at a time: converting an image at once would take several times its memory."""
    for top in range(0, image.height, rows):
        strip = image.crop((0, top, image.width, min(top + rows, image.height)))
        yield np.asarray(strip, dtype=np.float64)
