"""Middleware: checks access, limits concurrent requests, and adds security headers to every response."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from fastapi import HTTPException
from h11 import LocalProtocolError
from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nearkin.serve.access import Access
from nearkin.serve.slots import Slots, client_of

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    # The browser must revalidate its copies: the next gallery may be served at the same address.
    "Cache-Control": "no-cache",
}


class SafetyMiddleware:
    """ASGI middleware.

    Args:
        access: decides which requests are allowed.
        slots: for requests without a body; uploads have their own.
    """

    def __init__(self, app: ASGIApp, access: Access, slots: Slots) -> None:
        self._app, self._access, self._slots = app, access, slots

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def send_safely(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message).update(HEADERS)
            with suppress(LocalProtocolError):  # the request turned out not to be HTTP; uvicorn has answered it
                await send(message)

        if refusal := self._access.refusal(scope):
            await refusal(scope, receive, send_safely)
            return
        try:
            if scope["method"] == "POST":
                await self._app(scope, receive, send_safely)
            else:
                async with self._slots.slot(client_of(scope)):
                    await self._app(scope, receive, send_safely)
        except HTTPException as error:
            await JSONResponse({"detail": error.detail}, error.status_code, error.headers)(scope, receive, send_safely)
        except asyncio.CancelledError:  # the server is shutting down; no traceback is needed
            if not started:
                await JSONResponse({"detail": "the server is stopping"}, 503)(scope, receive, send_safely)
