"""Reads upload forms: in memory, up to a size limit."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from typing import Annotated

from fastapi import HTTPException, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, ValidationError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from nearkin.data.images import FORMATS
from nearkin.serve.slots import UploadSlots, client_of

FORM_OVERHEAD = 16 * 1024  # bytes of a form besides the file
MAX_NEIGHBOURS = 200

# It warns about every truncated form, which the response reports already.
logging.getLogger("python_multipart").setLevel(logging.ERROR)

Count = Annotated[int, Field(ge=1, le=MAX_NEIGHBOURS, description="Maximum number of items.")]
Label = Annotated[str | None, Field(description="Return only items with this label; empty: all items.")]


class Search(BaseModel):
    """The form of a search by image."""

    file: bytes = Field(
        description=f"An image: {', '.join(FORMATS)}. The first frame of an animation is used.",
        json_schema_extra={"format": "binary"},
    )
    k: Count = 20
    label: Label = None


async def read_search(request: Request, max_bytes: int, slots: UploadSlots) -> Search:
    """Reads the form of a request; raises 413 as soon as more than ``max_bytes`` are declared or received."""
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data":
        raise HTTPException(415, "not a multipart/form-data form; send the image as its field 'file'")
    if options.get(b"charset", b"utf-8").lower() != b"utf-8":  # some of Python's codecs fail on any text
        raise HTTPException(415, "the charset of the form is not supported; send it in UTF-8")
    try:
        async with slots.receiving(client_of(request.scope)) as received:
            body = _limited(request, max_bytes, received)
            parser = MultiPartParser(request.headers, body, max_files=1, max_fields=2)
            parser.spool_max_size = max_bytes + FORM_OVERHEAD  # never write to disk
            form = await parser.parse()
    except MultiPartException as error:
        raise HTTPException(400, f"the form cannot be read: {error.message}") from None
    except TimeoutError:
        raise HTTPException(408, "the upload is too slow; try again, or send a smaller image") from None
    except ClientDisconnect:
        raise HTTPException(400, "the upload was interrupted") from None  # nobody receives this
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise HTTPException(422, "the form has no file; send the image as the field 'file'")
    fields = {name: value for name, value in form.items() if name in ("k", "label")}
    try:
        return Search.model_validate({**fields, "file": await file.read()})
    except ValidationError as error:
        raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in error.errors()]) from None
    finally:
        await form.close()


async def _limited(request: Request, max_bytes: int, received: Callable[[int], None]) -> AsyncGenerator[bytes]:
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
        received(size)
        yield chunk
