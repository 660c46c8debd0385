"""How items are seen: one by one as thumbnails, or many in one sheet, so that a page with thousands stays small."""

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
class Pictures:
    """The pictures of some items.

    Attributes:
        thumbnail: number of an item and length of a side -> an RGB picture that fits the square; None for what cannot
            be read.
        grey: whether they are grey, which are often drawings.
        threads: whether several may be read at once; somebody else's code may not expect it.
    """

    thumbnail: Callable[[int, int], Image.Image | None]
    grey: bool = False
    threads: bool = True


class Sheet:
    """Cells are given out as items are asked for, and drawn together at the end.

    Args:
        name: of its CSS class.
        pictures: of its items; None where items cannot be seen, such as vectors.
        side: of a cell in pixels; a multiple of 16, or neighbouring cells of a JPEG bleed into each other.

    >>> sheet = Sheet("small", Pictures(lambda item, side: Image.new("RGB", (side, side))), side=16)
    >>> sheet.cell(7), sheet.cell(3), sheet.cell(7)
    (0, 1, 0)
    """

    def __init__(self, name: str, pictures: Pictures | None, side: int) -> None:
        self.name, self.pictures, self.side = name, pictures, side
        self._cells: dict[int, int] = {}

    def cell(self, item: int) -> int:
        """The place of an item in the sheet; -1 for what cannot be seen."""
        return self._cells.setdefault(item, len(self._cells)) if self.pictures else -1

    def tile(self, item: int, label: str, mark: str = "") -> str:
        """An item as HTML: its picture, or else its class; ``mark`` is "", "query", "right" or "wrong"."""
        sign = {"right": "<b>✓</b>", "wrong": "<b>✗</b>"}.get(mark, "")
        words = escape(label + {"right": " ✓", "wrong": " ✗"}.get(mark, ""))
        cell = self.cell(item)
        if cell < 0:
            return f'<span class="tile {mark}" title="{words}"><small>{escape(label)}</small>{sign}</span>'
        place = f"--x:{cell % COLUMNS};--y:{cell // COLUMNS}"
        look = f"tile {self.name} {mark}".strip()
        return f'<span class="{look}" style="{place}" role="img" aria-label="{words}" title="{words}">{sign}</span>'

    def uri(self) -> str:
        """The sheet as a ``data:`` address: lossless where pictures are grey; else JPEG."""
        grey = self.pictures is not None and self.pictures.grey
        rows = -(-len(self._cells) // COLUMNS)
        canvas = Image.new("L" if grey else "RGB", (COLUMNS * self.side, max(1, rows) * self.side))
        for cell, picture in enumerate(track(self._pictures(), "drawing thumbnails", len(self._cells))):
            if picture is not None:
                canvas.paste(picture, (cell % COLUMNS * self.side, cell // COLUMNS * self.side))
        content = io.BytesIO()
        canvas.save(content, "PNG" if grey else "JPEG", optimize=True, **({} if grey else {"quality": 75}))
        return f"data:image/{'png' if grey else 'jpeg'};base64,{base64.b64encode(content.getvalue()).decode()}"

    def style(self) -> str:
        """The CSS that its tiles need."""
        return f".{self.name}{{background-image:url({self.uri()})}}" if self._cells else ""

    def _pictures(self) -> Iterator[Image.Image | None]:
        threads = None if self.pictures and self.pictures.threads else 1
        with ThreadPoolExecutor(threads) as pool:
            yield from pool.map(self._picture, self._cells)

    def _picture(self, item: int) -> Image.Image | None:
        assert self.pictures is not None
        picture = self.pictures.thumbnail(item, 2 * self.side)
        return picture and ImageOps.fit(picture, (self.side, self.side))
