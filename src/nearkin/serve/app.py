"""The web application. Clients refer to items by id: the server never receives or sends a path."""

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
from nearkin.serve.schemas import Health, Item, Label, Map, Problem, SearchResponse
from nearkin.serve.service import SearchService
from nearkin.serve.slots import Slots, UploadSlots, client_of
from nearkin.serve.uploads import Count, Search, read_search
from nearkin.serve.uploads import Label as LabelFilter

log = logging.getLogger(__name__)
PAGE = Path(__file__).parent / "page"
MAX_REQUESTS = 64  # concurrent requests without a body; a browser sends six
MAX_UPLOADS = 32  # concurrent; each is held in memory
LARGEST_SIDE = 1024

ThumbnailSide = Annotated[int, Query(ge=16, le=512, description="Length of the longer side in pixels.")]
JPEG: dict[int | str, dict[str, Any]] = {200: {"content": {"image/jpeg": {}}}, 304: {"description": "Not modified"}}


def make_app(
    gallery: Gallery, max_upload_mb: int = 20, hosts: Collection[str] | None = None, token: str | None = None
) -> FastAPI:
    """The page and the API for one gallery.

    Args:
        max_upload_mb: larger files are refused before they are read completely.
        hosts: allowed host names; None: any.
        token: secret that clients must send; None: no token.
    """
    service, uploads = SearchService(gallery), UploadSlots(MAX_UPLOADS)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="nearkin",
        version=nearkin.__version__,
        description="Search a gallery of images by similarity.",
        lifespan=lifespan,
        docs_url=None,  # FastAPI's own pages load scripts from another server
        redoc_url=None,
        redirect_slashes=False,
        responses={code: {"model": Problem} for code in (401, 403, 404, 422, 503)},
    )
    app.add_middleware(SafetyMiddleware, access=Access(hosts, token), slots=Slots(MAX_REQUESTS))
    app.add_exception_handler(RequestValidationError, _bad_request)
    app.add_exception_handler(Exception, _failure)
    form = {"content": {"multipart/form-data": {"schema": Search.model_json_schema()}}, "required": True}

    @app.post(
        "/api/search",
        openapi_extra={"requestBody": form},
        responses={code: {"model": Problem} for code in (408, 413, 415)},
    )
    async def search(request: Request) -> SearchResponse:
        """Returns the items most similar to an image. The image is not stored."""
        async with uploads.slot(client_of(request.scope)):
            query = await read_search(request, max_upload_mb * 2**20, uploads)
            return await service.neighbours_of_image(query.file, query.k, query.label)

    @app.get("/api/items")
    async def some_items(k: Count = 24, label: LabelFilter = None) -> list[Item]:
        """Returns a fixed random sample of items, or the first items with a label."""
        return await service.some_items(k, label)

    @app.get("/api/items/{id}/neighbours")
    async def neighbours(id: int, k: Count = 20, label: LabelFilter = None) -> SearchResponse:
        """Returns the items most similar to this one, without the item itself."""
        return await service.neighbours_of_item(id, k, label)

    @app.get("/api/items/{id}/thumbnail", response_class=Response, responses=JPEG)
    async def thumbnail(request: Request, id: int, size: ThumbnailSide = 256) -> Response:
        """Returns a thumbnail of an item."""
        return await resized(request, id, size)

    @app.get("/api/items/{id}/image", response_class=Response, responses=JPEG)
    async def image(request: Request, id: int) -> Response:
        """Returns the image of an item, re-encoded, with a longer side of at most 1024 pixels."""
        return await resized(request, id, LARGEST_SIDE)

    async def resized(request: Request, id: int, side: int) -> Response:
        image = await service.image(id, side)
        headers = {"ETag": f'"{image.tag}"'}
        if image.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(image.content, media_type="image/jpeg", headers=headers)

    @app.get("/api/labels")
    async def labels() -> list[Label]:
        """Returns all labels of the gallery, sorted by name."""
        return [Label(label=label, items=items) for label, items in (await service.labels()).items()]

    @app.get("/api/map", responses={202: {"model": Map, "description": "Still being computed"}})
    async def space_map(response: Response) -> Map:
        """Returns a two-dimensional map of up to 2,000 items, in which similar items are close together."""
        answer = await service.map()
        response.status_code = 200 if answer.ready else 202
        return answer

    @app.get("/api/health")
    async def health() -> Health:
        """Returns the status of the server and the size of the gallery."""
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
    return JSONResponse({"detail": "internal error; the server's log has the details"}, 500, HEADERS)
