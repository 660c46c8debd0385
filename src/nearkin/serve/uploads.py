"""The form of an upload: read no further than allowed, never written to disk."""

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
from nearkin.serve.places import UploadPlaces, client_of

FORM_OVERHEAD = 16 * 1024  # bytes of a form that are not the file
MAX_NEIGHBOURS = 200

# It warns about every form that ends too early; the answer says so already.
logging.getLogger("python_multipart").setLevel(logging.ERROR)

Count = Annotated[int, Field(ge=1, le=MAX_NEIGHBOURS, description="How many, at most.")]
Label = Annotated[str | None, Field(description="Only items with this label; empty: all.")]


class Search(BaseModel):
    """The form of a search by picture."""

    file: bytes = Field(
        description=f"A picture: {', '.join(FORMATS)}; of an animated one, the first frame.",
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
