"""Every request comes in here and every answer leaves here: asked for by the right name, not too many at once, and with
safe headers."""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
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
    """ASGI middleware.

    Args:
        most: requests inside; the next one is told to come again in a second.
        hosts: the names by which the server may be called, None for any. A web site can give its own name the address
            of this machine, and would then read with the browser's help what is served to this machine only.
    """

    def __init__(self, app: ASGIApp, most: int, hosts: Collection[str] | None = None) -> None:
        self._app, self._most, self._hosts, self._inside = app, most, hosts, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        if self._hosts is not None and _name(Headers(scope=scope).get("host", "")) not in self._hosts:
            sentence = "this server is not called that; use the address it printed, or start it with --allow-host"
            await JSONResponse({"detail": sentence}, 400)(scope, receive, send_safely)
            return
        if self._inside >= self._most:
            sentence = "too many requests are being answered at the moment; try again in a second"
            await JSONResponse({"detail": sentence}, 503, {"Retry-After": "1"})(scope, receive, send_safely)
            return
        self._inside += 1
        try:
            await self._app(scope, receive, send_safely)
        finally:
            self._inside -= 1


def _name(host: str) -> str:
    """A host header without the port.

    >>> _name("LocalHost:8000"), _name("[::1]:8000"), _name("[::1]")
    ('localhost', '[::1]', '[::1]')
    """
    return (host if host.endswith("]") else host.rsplit(":", 1)[0]).lower()
