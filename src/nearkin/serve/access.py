"""Access control: checks the host name, the origin of the request, and the token."""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import Scope

from nearkin.errors import UserError

PAGE = '<!doctype html><html lang="en"><meta charset="utf-8"><title>nearkin</title>'


class Access:
    """Decides whether a request is allowed.

    Args:
        hosts: allowed values of the ``Host`` header, without the port; None: any. This prevents DNS rebinding: a web
            site that points its own name to this machine could otherwise read a local server through the browser.
        token: secret that clients must send; None: no token. Programs send ``Authorization: Bearer TOKEN``. People
            open ``/?token=TOKEN``, which sets a cookie.
    """

    def __init__(self, hosts: Collection[str] | None, token: str | None) -> None:
        self._hosts, self._token = hosts, token

    def refusal(self, scope: Scope) -> Response | None:
        """The response to a request that is not allowed; None if it is allowed."""
        request = Request(scope)
        path, headers = scope["path"], request.headers
        if self._hosts is not None and _host_name(headers.get("host", "")) not in self._hosts:
            sentence = "this host name is not allowed; use the address that the server printed, or set allow_host"
            return JSONResponse({"detail": sentence}, 400)
        if (request.method not in ("GET", "HEAD") or path.startswith("/api/")) and _is_from_another_site(headers):
            return JSONResponse({"detail": "requests from other sites are refused; open the server's own page"}, 403)
        if self._token is None:
            return None
        cookie = f"nearkin-{(scope.get('server') or ('', 0))[1]}"  # browsers share cookies between ports
        if path == "/" and self._matches(request.query_params.get("token", "")):
            return self._signed_in(cookie, secure=scope.get("scheme") == "https")
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._matches(bearer.strip()):
            return None
        if self._matches(request.cookies.get(cookie, "")):
            return None
        return _unauthorized(wants_page=not path.startswith("/api/") and "text/html" in headers.get("accept", ""))

    def _matches(self, given: str) -> bool:
        assert self._token is not None
        return secrets.compare_digest(given.encode(errors="replace"), self._token.encode())

    def _signed_in(self, cookie: str, secure: bool) -> Response:
        """Sets the cookie and forwards to ``/``, so that the token leaves the address bar.

        A redirect would not work: if the link was on another site, browsers do not send a strict cookie with it.
        """
        assert self._token is not None
        page = HTMLResponse(f'{PAGE}<meta http-equiv="refresh" content="0; url=/"><p><a href="/">Continue</a>')
        page.set_cookie(cookie, self._token, httponly=True, samesite="strict", secure=secure)
        return page


def check_token(token: str) -> str:
    """Checks that a token fits into a URL, a header and a cookie. The error does not repeat the token.

    >>> check_token("secret")
    Traceback (most recent call last):
    nearkin.errors.UserError: a token must be 16 or more letters, digits or any of -._~; choose another
    """
    if not re.fullmatch(r"[A-Za-z0-9._~-]{16,}", token):
        raise UserError("a token must be 16 or more letters, digits or any of -._~; choose another")
    return token


def _unauthorized(wants_page: bool) -> Response:
    headers = {"WWW-Authenticate": "Bearer"}
    sentence = "this gallery requires a token; send it as Authorization: Bearer TOKEN"
    if not wants_page:
        return JSONResponse({"detail": sentence}, 401, headers)
    text = '<p>This gallery requires a token. Open the link with <code>?token=</code>. <a href="/">Try again</a>'
    return HTMLResponse(PAGE + text, 401, headers)


def _is_from_another_site(headers: Headers) -> bool:
    """Whether a browser marks the request as cross-origin. Programs send neither header and are allowed.

    This is the rule of Go's ``CrossOriginProtection``.


    >>> _is_from_another_site(Headers({"host": "a:8000", "origin": "http://b:8000"}))
    True
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower()


def _host_name(host: str) -> str:
    """The ``Host`` header without the port.

    >>> _host_name("LocalHost:8000"), _host_name("[::1]:8000"), _host_name("[::1]")
    ('localhost', '[::1]', '[::1]')
    """
    return (host if host.endswith("]") else host.rsplit(":", 1)[0]).lower()
