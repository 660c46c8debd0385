"""Every request comes in here and every answer leaves here: not too many at once, and with safe headers."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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


class Door:
    """ASGI middleware: at most ``most`` requests are inside; the next one is told to come again in a second."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app, self._most, self._inside = app, most, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        if self._inside >= self._most:
            sentence = "too many requests are being answered at the moment; try again in a second"
            await JSONResponse({"detail": sentence}, 503, {"Retry-After": "1"})(scope, receive, send_safely)
            return
        self._inside += 1
        try:
            await self._app(scope, receive, send_safely)
        finally:
            self._inside -= 1
