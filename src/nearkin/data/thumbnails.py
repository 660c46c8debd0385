"""Small pictures of items, for reports."""

from __future__ import annotations

from PIL import Image

from nearkin.data.images import Unreadable, read_small
from nearkin.data.items import ImageArray, Items, Vectors


def thumbnail(items: Items, index: int, side: int) -> Image.Image | None:
    """One item as an RGB picture that fits a square; None for what cannot be seen."""
    if isinstance(items, Vectors):
        return None
    if isinstance(items, ImageArray):
        picture: Image.Image | Unreadable = Image.fromarray(items.pixels[index]).convert("RGB")
    else:
        picture = read_small(items.paths[index], side)
    if isinstance(picture, Unreadable):
        return None
    scale = side / max(picture.size)
    return picture.resize((max(1, round(picture.width * scale)), max(1, round(picture.height * scale))))
