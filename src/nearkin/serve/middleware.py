"""Every request is let in or refused and finds its place, and every answer has safe headers."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from fastapi import HTTPException
from h11 import LocalProtocolError
from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nearkin.serve.access import Access
from nearkin.serve.places import Places, client_of

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Another gallery may be served at the same address next: the browser asks each time whether its copy still holds.
    "Cache-Control": "no-cache",
}


class SafetyMiddleware:
    """ASGI middleware.

    Args:
        access: who may ask.
        places: for requests without a body; an upload takes one of its own kind.
    """

    def __init__(self, app: ASGIApp, access: Access, places: Places) -> None:
        self._app, self._access, self._places = app, access, places

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = False

        async def send_safely(message: Message) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                MutableHeaders(scope=message).update(HEADERS)
            with suppress(LocalProtocolError):  # the rest of the request was not HTTP, and was answered with that
                await send(message)

        if refusal := self._access.refusal(scope):
            await refusal(scope, receive, send_safely)
            return
        try:
            if scope["method"] == "POST":
                await self._app(scope, receive, send_safely)
            else:
                async with self._places.place(client_of(scope)):
                    await self._app(scope, receive, send_safely)
        except HTTPException as error:
            await JSONResponse({"detail": error.detail}, error.status_code, error.headers)(scope, receive, send_safely)
        except asyncio.CancelledError:  # the server ends and waited long enough; its log needs no traceback of that
            if not began:
                await JSONResponse({"detail": "the server is stopping"}, 503)(scope, receive, send_safely)
