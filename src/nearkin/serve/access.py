"""Who may ask: who calls the server by an allowed name, not from another site's page, and knows the token."""

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
    """Lets requests in.

    Args:
        hosts: the names by which the server may be called, None for any. A web site can give its own name the address
            of this machine, and would then read with the browser's help what is served to this machine only.
        token: what a client must know; None: nothing. Programs send it as ``Authorization: Bearer TOKEN``, people open
            ``/?token=TOKEN``, which leaves a cookie.
    """

    def __init__(self, hosts: Collection[str] | None, token: str | None) -> None:
        self._hosts, self._token = hosts, token

    def refusal(self, scope: Scope) -> Response | None:
        """What is said instead of an answer; None: the request may go on."""
        request = Request(scope)
        path, headers = scope["path"], request.headers
        if self._hosts is not None and _host_name(headers.get("host", "")) not in self._hosts:
            sentence = "this server is known by other names; use the address it printed, or start it with allow_host"
            return JSONResponse({"detail": sentence}, 400)
        if (request.method not in ("GET", "HEAD") or path.startswith("/api/")) and _is_from_another_site(headers):
            return JSONResponse({"detail": "pages of other sites may not use this server; open its own page"}, 403)
        if self._token is None:
            return None
        cookie = f"nearkin-{(scope.get('server') or ('', 0))[1]}"  # browsers share cookies among the ports of a host
        if path == "/" and self._knows(request.query_params.get("token", "")):
            return self._signed_in(cookie, secure=scope.get("scheme") == "https")
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._knows(bearer.strip()):
            return None
        if self._knows(request.cookies.get(cookie, "")):
            return None
        return _unknown(wants_page=not path.startswith("/api/") and "text/html" in headers.get("accept", ""))

    def _knows(self, given: str) -> bool:
        assert self._token is not None
        return secrets.compare_digest(given.encode(errors="replace"), self._token.encode())

    def _signed_in(self, cookie: str, secure: bool) -> Response:
        """A page that goes on to the page, so that the token leaves the address bar.

        Not a redirect: after a link on another site, browsers send a strict cookie only from a page of this one.
        """
        assert self._token is not None
        page = HTMLResponse(f'{PAGE}<meta http-equiv="refresh" content="0; url=/"><p><a href="/">Go on</a>')
        page.set_cookie(cookie, self._token, httponly=True, samesite="strict", secure=secure)
        return page


def check_token(token: str) -> str:
    """A token that can be part of a link, a header and a cookie; the message does not repeat it.

    >>> check_token("secret")
    Traceback (most recent call last):
    nearkin.errors.UserError: a token is 16 or more letters, digits or any of -._~; choose another
    """
    if not re.fullmatch(r"[A-Za-z0-9._~-]{16,}", token):
        raise UserError("a token is 16 or more letters, digits or any of -._~; choose another")
    return token


def _unknown(wants_page: bool) -> Response:
    headers = {"WWW-Authenticate": "Bearer"}
    sentence = "this gallery asks for its token; send it as Authorization: Bearer TOKEN"
    if not wants_page:
        return JSONResponse({"detail": sentence}, 401, headers)
    words = '<p>This gallery asks for its token: open the link with <code>?token=</code>. <a href="/">Try again</a>'
    return HTMLResponse(PAGE + words, 401, headers)


def _is_from_another_site(headers: Headers) -> bool:
    """As browsers tell; programs say nothing and are let in. (The rule is that of Go's ``CrossOriginProtection``.)

    >>> _is_from_another_site(Headers({"host": "a:8000", "origin": "http://b:8000"}))
    True
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower()


def _host_name(host: str) -> str:
    """A host header without the port.

    >>> _host_name("LocalHost:8000"), _host_name("[::1]:8000"), _host_name("[::1]")
    ('localhost', '[::1]', '[::1]')
    """
    return (host if host.endswith("]") else host.rsplit(":", 1)[0]).lower()
