"""Thumbnails of items: one by one, or many in one sprite sheet, so that a page with thousands stays small."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from html import escape

from PIL import Image, ImageOps

from nearkin.progress import track

COLUMNS = 32


@dataclass(frozen=True, eq=False)
class Thumbnails:
    """The thumbnails of a dataset's items.

    Attributes:
        thumbnail: (item number, side in pixels) -> an RGB image that fits into the square; None if it cannot be read.
        grey: whether the images are grey; these are often drawings.
        threads: whether several images may be read at once; a user's own dataset may not be thread-safe.
    """

    thumbnail: Callable[[int, int], Image.Image | None]
    grey: bool = False
    threads: bool = True


class Sheet:
    """A sprite sheet. Each item gets a cell on first use; all cells are drawn together at the end.

    Args:
        name: its CSS class.
        thumbnails: images of the items; None for items without images, such as vectors.
        side: side of a cell in pixels; a multiple of 16, or neighbouring cells of a JPEG bleed into each other.

    >>> sheet = Sheet("small", Thumbnails(lambda item, side: Image.new("RGB", (side, side))), side=16)
    >>> sheet.cell(7), sheet.cell(3), sheet.cell(7)
    (0, 1, 0)
    """

    def __init__(self, name: str, thumbnails: Thumbnails | None, side: int) -> None:
        self.name, self.thumbnails, self.side = name, thumbnails, side
        self._cells: dict[int, int] = {}

    def cell(self, item: int) -> int:
        """The number of an item's cell; -1 if items have no images."""
        return self._cells.setdefault(item, len(self._cells)) if self.thumbnails else -1

    def tile(self, item: int, label: str, mark: str = "") -> str:
        """HTML of an item: its image, or its class if it has none; ``mark`` is "", "query", "right" or "wrong"."""
        sign = {"right": "<b>✓</b>", "wrong": "<b>✗</b>"}.get(mark, "")
        words = escape(label + {"right": " ✓", "wrong": " ✗"}.get(mark, ""))
        cell = self.cell(item)
        if cell < 0:
            return f'<span class="tile {mark}" title="{words}"><small>{escape(label)}</small>{sign}</span>'
        place = f"--x:{cell % COLUMNS};--y:{cell // COLUMNS}"
        kind = f"tile {self.name} {mark}".strip()
        return f'<span class="{kind}" style="{place}" role="img" aria-label="{words}" title="{words}">{sign}</span>'

    def uri(self) -> str:
        """The sheet as a ``data:`` URI: PNG for grey images, otherwise JPEG."""
        grey = self.thumbnails is not None and self.thumbnails.grey
        rows = -(-len(self._cells) // COLUMNS)
        canvas = Image.new("L" if grey else "RGB", (COLUMNS * self.side, max(1, rows) * self.side))
        for cell, image in enumerate(track(self._images(), "drawing thumbnails", len(self._cells))):
            if image is not None:
                canvas.paste(image, (cell % COLUMNS * self.side, cell // COLUMNS * self.side))
        content = io.BytesIO()
        canvas.save(content, "PNG" if grey else "JPEG", optimize=True, **({} if grey else {"quality": 75}))
        return f"data:image/{'png' if grey else 'jpeg'};base64,{base64.b64encode(content.getvalue()).decode()}"

    def style(self) -> str:
        """The CSS for its tiles."""
        return f".{self.name}{{background-image:url({self.uri()})}}" if self._cells else ""

    def _images(self) -> Iterator[Image.Image | None]:
        threads = None if self.thumbnails and self.thumbnails.threads else 1
        with ThreadPoolExecutor(threads) as pool:
            yield from pool.map(self._image, self._cells)

    def _image(self, item: int) -> Image.Image | None:
        assert self.thumbnails is not None
        image = self.thumbnails.thumbnail(item, 2 * self.side)
        return image and ImageOps.fit(image, (self.side, self.side))
