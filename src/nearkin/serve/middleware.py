"""Every request names an allowed host, not too many run at once, and answers have safe headers."""

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


class SafetyMiddleware:
    """ASGI middleware.

    Args:
        max_requests: at the same time; the next one is told to try again in a second.
        hosts: the names by which the server may be called, None for any. A web site can give its own name the address
            of this machine, and would then read with the browser's help what is served to this machine only.
    """

    def __init__(self, app: ASGIApp, max_requests: int, hosts: Collection[str] | None = None) -> None:
        self._app, self._max_requests, self._hosts, self._running = app, max_requests, hosts, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        if self._hosts is not None and _host_name(Headers(scope=scope).get("host", "")) not in self._hosts:
            sentence = "this server is known by other names; use the address it printed, or start it with allow_host"
            await JSONResponse({"detail": sentence}, 400)(scope, receive, send_safely)
            return
        if self._running >= self._max_requests:
            sentence = "too many requests are being answered at the moment; try again in a second"
            await JSONResponse({"detail": sentence}, 503, {"Retry-After": "1"})(scope, receive, send_safely)
            return
        self._running += 1
        try:
            await self._app(scope, receive, send_safely)
        finally:
            self._running -= 1


def _host_name(host: str) -> str:
    """A host header without the port.

    >>> _host_name("LocalHost:8000"), _host_name("[::1]:8000"), _host_name("[::1]")
    ('localhost', '[::1]', '[::1]')
    """
    return (host if host.endswith("]") else host.rsplit(":", 1)[0]).lower()
