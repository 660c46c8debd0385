"""A stranger's picture becomes pixels: looked at before it is decoded, and never more than there is room for."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO

import anyio
import anyio.to_thread
from fastapi import HTTPException
from PIL import Image, UnidentifiedImageError

from nearkin.data.images import FORMATS, to_rgb

MAX_PIXELS = 40_000_000  # of an upload: a small file can hold a picture that takes gigabytes
PHOTO = 16_000_000  # pixels; a larger picture is made smaller before it is converted, and waits for others like it
# Bytes that a pixel takes at most while it is decoded, turned and converted, by Pillow's mode; WebP takes most. Grey
# and palette pictures may have transparency, which costs them a copy in four colours.
BYTES = {"1": 11, "L": 11, "P": 11}
BYTES_OF_OTHERS = 21


class Lane:
    """A queue to the decoders: so many at once, and so many bytes until the model has seen what was decoded."""

    def __init__(self, most_bytes: int, decoders: int) -> None:
        self._left = most_bytes
        self._changed = asyncio.Condition()
        self._decoders = anyio.CapacityLimiter(decoders)

    @asynccontextmanager
    async def decoded(self, image: Image.Image) -> AsyncIterator[Image.Image]:
        """The picture, in memory that is counted until the end of the block."""
        async with self.room_for(cost(image)):
            yield await anyio.to_thread.run_sync(decode, image, limiter=self._decoders)

    @asynccontextmanager
    async def room_for(self, size: int) -> AsyncIterator[None]:
        async with self._changed:
            await self._changed.wait_for(lambda: self._left >= size)
            self._left -= size
        try:
            yield
        finally:
            async with self._changed:
                self._left += size
                self._changed.notify_all()


class Lanes:
    """One lane for photos and one for larger pictures, so that these only make each other wait."""

    def __init__(self) -> None:
        self._photos = Lane(2 * PHOTO * BYTES_OF_OTHERS, decoders=2)
        self._larger = Lane(MAX_PIXELS * BYTES_OF_OTHERS, decoders=1)

    def of(self, image: Image.Image) -> Lane:
        return self._larger if image.width * image.height > PHOTO else self._photos


def open_picture(content: bytes) -> Image.Image:
    """A picture whose head was read and whose size is allowed, not yet decoded.

    >>> open_picture(b"GIF, or so they say")
    Traceback (most recent call last):
    fastapi.exceptions.HTTPException: 415: the file is no picture that can be read; send a JPEG, PNG or WebP
    """
    if not content:
        raise HTTPException(422, "the file is empty (0 bytes); send a picture")
    try:
        image = Image.open(BytesIO(content), formats=FORMATS)
    except Image.DecompressionBombError:
        raise _too_many_pixels() from None
    except UnidentifiedImageError:
        raise HTTPException(415, "the file is no picture that can be read; send a JPEG, PNG or WebP") from None
    except Exception:  # decoders meet hostile bytes and raise nearly anything
        raise _damaged() from None
    if image.width * image.height > MAX_PIXELS:
        raise _too_many_pixels()
    return image


def cost(image: Image.Image) -> int:
    """Bytes that decoding it takes.

    >>> cost(Image.new("L", (10, 10))), cost(Image.new("F", (10, 10)))
    (1100, 2100)
    """
    return image.width * image.height * BYTES.get(image.mode, BYTES_OF_OTHERS)


def decode(image: Image.Image) -> Image.Image:
    """The first frame, upright, as RGB; no larger than a photo."""
    try:
        if (times := _times_too_large(image)) > 1:
            image.draft("RGB", (image.width // times, image.height // times))  # a JPEG is decoded smaller
        return to_rgb(image, _times_too_large(image))
    except Exception:
        raise _damaged() from None


def _times_too_large(image: Image.Image) -> int:
    return max(1, math.ceil(math.sqrt(image.width * image.height / PHOTO)))


def _too_many_pixels() -> HTTPException:
    return HTTPException(413, f"the picture has more than {MAX_PIXELS // 1_000_000} megapixels; send a smaller one")


def _damaged() -> HTTPException:
    return HTTPException(422, "the picture is damaged or cut off and cannot be decoded; send it again or another one")
