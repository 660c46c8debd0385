"""An upload becomes an image: read no further than allowed, checked before it is decoded, never written to disk."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Annotated

import anyio
import anyio.to_thread
from fastapi import HTTPException, Request
from fastapi.exceptions import RequestValidationError
from PIL import Image, UnidentifiedImageError
from pydantic import BaseModel, Field, ValidationError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from nearkin.data.images import FORMATS, to_rgb
from nearkin.serve.places import UploadPlaces, client_of

FORM_OVERHEAD = 16 * 1024  # bytes of a form that are not the file
MAX_NEIGHBOURS = 200
MAX_PIXELS = 40_000_000  # of an upload: a small file can hold a picture that takes gigabytes
PHOTO = 16_000_000  # pixels; a larger picture is made smaller before it is converted
# Bytes that a pixel takes at most while it is decoded, turned and converted, by Pillow's mode; WebP takes most. Grey
# and palette pictures may have transparency, which costs them a copy in four colours.
BYTES = {"1": 11, "L": 11, "P": 11}
BYTES_OTHERWISE = 21

# It warns about every form that ends too early; the answer says so already.
logging.getLogger("python_multipart").setLevel(logging.ERROR)

Count = Annotated[int, Field(ge=1, le=MAX_NEIGHBOURS, description="How many, at most.")]
Label = Annotated[str | None, Field(description="Only items with this label; empty: all.")]


class Search(BaseModel):
    """The form of a search by picture."""

    file: bytes = Field(
        description=(
            f"A picture of at most {MAX_PIXELS // 1_000_000} megapixels: {', '.join(FORMATS)}; "
            "of an animated one, the first frame."
        ),
        json_schema_extra={"format": "binary"},
    )
    k: Count = 20
    label: Label = None


async def read_search(request: Request, max_bytes: int, places: UploadPlaces) -> Search:
    """The form in a request's body; 413 as soon as more than ``max_bytes`` are declared or have come."""
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data":
        raise HTTPException(415, "send the picture as the field 'file' of a multipart/form-data form")
    if options.get(b"charset", b"utf-8").lower() != b"utf-8":  # Python knows some that decode nothing
        raise HTTPException(415, "the form is in another character set; send it in UTF-8")
    try:
        async with places.arrival(client_of(request.scope)) as came:
            body = _limited(request, max_bytes, came)
            parser = MultiPartParser(request.headers, body, max_files=1, max_fields=2)
            parser.spool_max_size = max_bytes + FORM_OVERHEAD  # all of it stays in memory
            form = await parser.parse()
    except MultiPartException as error:
        raise HTTPException(400, f"the form cannot be read: {error.message}") from None
    except TimeoutError:
        raise HTTPException(408, "the picture arrives too slowly; try again, or send a smaller one") from None
    except ClientDisconnect:
        raise HTTPException(400, "the upload was broken off") from None  # nobody is left to hear it
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise HTTPException(422, "the form has no file; send the picture as the field 'file'")
    fields = {name: value for name, value in form.items() if name in ("k", "label")}
    try:
        return Search.model_validate({**fields, "file": await file.read()})
    except ValidationError as error:
        raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in error.errors()]) from None
    finally:
        await form.close()


async def _limited(request: Request, max_bytes: int, came: Callable[[int], None]) -> AsyncGenerator[bytes]:
    limit = max_bytes + FORM_OVERHEAD
    too_large = HTTPException(413, f"the file is larger than {max_bytes // 2**20} MB; send a smaller one")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise too_large
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise too_large
        came(size)
        yield chunk


class DecodeLimiter:
    """Limits how many images are decoded at once, and the bytes they take until the model has seen them."""

    def __init__(self, max_bytes: int, decoders: int) -> None:
        self._left = max_bytes
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


class DecodeLimiters:
    """One for photos and one for larger images, so that large ones only wait for each other."""

    def __init__(self) -> None:
        self._photos = DecodeLimiter(2 * PHOTO * BYTES_OTHERWISE, decoders=2)
        self._larger = DecodeLimiter(MAX_PIXELS * BYTES_OTHERWISE, decoders=1)

    def of(self, image: Image.Image) -> DecodeLimiter:
        return self._larger if image.width * image.height > PHOTO else self._photos


def open_picture(content: bytes) -> Image.Image:
    """A picture whose head was read and whose size is allowed, not yet decoded.

    >>> open_picture(b"GIF, or so they say")
    Traceback (most recent call last):
    fastapi.exceptions.HTTPException: 415: the file is not a picture that can be read; send a JPEG, PNG or WebP
    """
    if not content:
        raise HTTPException(422, "the file is empty (0 bytes); send a picture")
    try:
        image = Image.open(BytesIO(content), formats=FORMATS)
    except Image.DecompressionBombError:
        raise _too_many_pixels() from None
    except UnidentifiedImageError:
        raise HTTPException(415, "the file is not a picture that can be read; send a JPEG, PNG or WebP") from None
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
    return image.width * image.height * BYTES.get(image.mode, BYTES_OTHERWISE)


def decode(image: Image.Image) -> Image.Image:
    """The first frame, upright, as RGB; no larger than a photo."""
    try:
        if (factor := _shrink_factor(image)) > 1:
            image.draft("RGB", (image.width // factor, image.height // factor))  # a JPEG is decoded smaller
        return to_rgb(image, _shrink_factor(image))
    except Exception:
        raise _damaged() from None


def _shrink_factor(image: Image.Image) -> int:
    return max(1, math.ceil(math.sqrt(image.width * image.height / PHOTO)))


def _too_many_pixels() -> HTTPException:
    return HTTPException(413, f"the picture has more than {MAX_PIXELS // 1_000_000} megapixels; send a smaller one")


def _damaged() -> HTTPException:
    return HTTPException(422, "the picture is damaged or cut off and cannot be decoded; send it again or another one")
