"""The web application. Items are named by number only: no path comes in or goes out."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.staticfiles import StaticFiles

import nearkin
from nearkin.search.gallery import Gallery
from nearkin.serve.access import Access
from nearkin.serve.docs_page import docs_page
from nearkin.serve.middleware import HEADERS, SafetyMiddleware
from nearkin.serve.places import Places, UploadPlaces, client_of
from nearkin.serve.schemas import Health, Item, Label, Map, Problem, SearchResponse
from nearkin.serve.service import SearchService
from nearkin.serve.uploads import Count, Search, read_search
from nearkin.serve.uploads import Label as LabelFilter

log = logging.getLogger(__name__)
PAGE = Path(__file__).parent / "page"
MAX_REQUESTS = 64  # without a body, at the same time; a browser sends six
MAX_UPLOADS = 32  # at the same time: each is in memory
LARGEST_SIDE = 1024

ThumbnailSide = Annotated[int, Query(ge=16, le=512, description="The longer side in pixels.")]
JPEG: dict[int | str, dict[str, Any]] = {200: {"content": {"image/jpeg": {}}}, 304: {"description": "Not changed"}}


def make_app(
    gallery: Gallery, max_upload_mb: int = 20, hosts: Collection[str] | None = None, token: str | None = None
) -> FastAPI:
    """The page and the API of one gallery.

    Args:
        max_upload_mb: files larger than this are refused while they arrive.
        hosts: the names by which it may be called; None: any.
        token: what a client must know; None: nothing.
    """
    service, uploads = SearchService(gallery), UploadPlaces(MAX_UPLOADS)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="nearkin",
        version=nearkin.__version__,
        description="Search a gallery of images by how they look.",
        lifespan=lifespan,
        docs_url=None,  # both would load their scripts from another server
        redoc_url=None,
        redirect_slashes=False,
        responses={code: {"model": Problem} for code in (401, 403, 404, 422, 503)},
    )
    app.add_middleware(SafetyMiddleware, access=Access(hosts, token), places=Places(MAX_REQUESTS))
    app.add_exception_handler(RequestValidationError, _bad_request)
    app.add_exception_handler(Exception, _failure)
    form = {"content": {"multipart/form-data": {"schema": Search.model_json_schema()}}, "required": True}

    @app.post(
        "/api/search",
        openapi_extra={"requestBody": form},
        responses={code: {"model": Problem} for code in (408, 413, 415)},
    )
    async def search(request: Request) -> SearchResponse:
        """The items most like a picture; the picture is not kept."""
        async with uploads.place(client_of(request.scope)):
            asked = await read_search(request, max_upload_mb * 2**20, uploads)
            return await service.neighbours_of_picture(asked.file, asked.k, asked.label)

    @app.get("/api/items")
    async def some_items(k: Count = 24, label: LabelFilter = None) -> list[Item]:
        """A few items to begin with: drawn at random once, or the first of a label."""
        return await service.some_items(k, label)

    @app.get("/api/items/{id}/neighbours")
    async def neighbours(id: int, k: Count = 20, label: LabelFilter = None) -> SearchResponse:
        """The items most like this one, without itself."""
        return await service.neighbours_of_item(id, k, label)

    @app.get("/api/items/{id}/thumbnail", response_class=Response, responses=JPEG)
    async def thumbnail(request: Request, id: int, size: ThumbnailSide = 256) -> Response:
        """A small picture of an item."""
        return await picture_of(request, id, size)

    @app.get("/api/items/{id}/picture", response_class=Response, responses=JPEG)
    async def picture(request: Request, id: int) -> Response:
        """A larger picture of an item, at most 1024 pixels; never the file itself."""
        return await picture_of(request, id, LARGEST_SIDE)

    async def picture_of(request: Request, id: int, side: int) -> Response:
        small = await service.picture(id, side)
        headers = {"ETag": f'"{small.tag}"'}
        if small.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(small.content, media_type="image/jpeg", headers=headers)

    @app.get("/api/labels")
    async def labels() -> list[Label]:
        """All labels of the gallery, by name."""
        return [Label(label=label, items=items) for label, items in (await service.labels()).items()]

    @app.get("/api/map", responses={202: {"model": Map, "description": "Still being computed"}})
    async def space_map(response: Response) -> Map:
        """The map of the space: up to 2,000 items, near each other where they are alike."""
        answer = await service.map()
        response.status_code = 200 if answer.ready else 202
        return answer

    @app.get("/api/health")
    async def health() -> Health:
        """Whether it works, and what is served."""
        return Health(version=nearkin.__version__, items=await service.size(), max_upload_mb=max_upload_mb)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(docs_page(app.openapi()))

    app.mount("/", StaticFiles(directory=PAGE, html=True))
    return app


async def _bad_request(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    wrong = [f"{each['loc'][-1]}: {each['msg'][0].lower()}{each['msg'][1:]}" for each in error.errors()]
    return JSONResponse({"detail": "; ".join(wrong)}, 422)


async def _failure(request: Request, error: Exception) -> JSONResponse:
    log.error("%s %s failed", request.method, request.scope["path"], exc_info=error)
    return JSONResponse({"detail": "the server failed at this; its log says why"}, 500, HEADERS)
