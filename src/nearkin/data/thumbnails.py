"""Small pictures of items, for reports."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from nearkin.data.images import Unreadable, read_small
from nearkin.data.items import ImageArray, ImageFiles, Items, LazyImages, Vectors
from nearkin.errors import UserError


def thumbnail(items: Items, index: int, side: int) -> Image.Image | None:
    """One item as an RGB picture that fits a square; None for what cannot be seen."""
    if isinstance(items, Vectors):
        return None
    picture: Image.Image | Unreadable
    if isinstance(items, ImageArray):
        picture = items.picture(index)
    elif isinstance(items, LazyImages):
        try:
            picture = items.sample(index)
        except UserError:
            return None
    else:
        picture = read_small(items.paths[index], side)
    if isinstance(picture, Unreadable):
        return None
    scale = side / max(picture.size)
    return picture.resize((max(1, round(picture.width * scale)), max(1, round(picture.height * scale))))


def file_thumbnail(path: Path, side: int) -> Image.Image | None:
    """The same of an image file; None where it is gone."""
    return thumbnail(ImageFiles([path]), 0, side)
