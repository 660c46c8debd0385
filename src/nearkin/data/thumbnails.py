"""Thumbnails of items, for reports."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from nearkin.data.images import Unreadable, read_small
from nearkin.data.items import ImageArray, ImageFiles, Items, LazyImages, Vectors
from nearkin.errors import UserError


def thumbnail(items: Items, index: int, side: int) -> Image.Image | None:
    """Returns an RGB image of one item that fits a square of ``side`` pixels; None for vectors and unreadable files."""
    if isinstance(items, Vectors):
        return None
    image: Image.Image | Unreadable
    if isinstance(items, ImageArray):
        image = items.image(index)
    elif isinstance(items, LazyImages):
        try:
            image = items.sample(index)
        except UserError:
            return None
    else:
        image = read_small(items.paths[index], side)
    if isinstance(image, Unreadable):
        return None
    scale = side / max(image.size)
    return image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))))


def file_thumbnail(path: Path, side: int) -> Image.Image | None:
    """Same for an image file; None if it cannot be read."""
    return thumbnail(ImageFiles([path]), 0, side)
