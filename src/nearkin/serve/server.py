"""Serves a gallery until Ctrl-C, by default to this machine only."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import secrets
import socket
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from nearkin.errors import UserError
from nearkin.search import Gallery

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

STOP_SECONDS = 1  # for running requests to finish after Ctrl-C
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


def serve(
    gallery: Gallery,
    host: str = "127.0.0.1",
    port: int = 8000,
    open_browser: bool = False,
    allow_host: Sequence[str] | None = None,
    token: str | None = None,
) -> None:
    """Serves a gallery at ``http://host:port`` until Ctrl-C.

    Args:
        gallery: the gallery to search.
        host: address to listen on. "0.0.0.0" accepts connections from other machines.
        port: port to listen on; 0: any free port.
        open_browser: open the page in a browser.
        allow_host: additional host names to accept, such as that of a reverse proxy.
        token: secret that clients must send; None: the environment variable NEARKIN_TOKEN. If that is not set and
            other machines can connect, a random token is created and printed.
    """
    try:
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401

        from nearkin.serve.access import check_token
        from nearkin.serve.app import make_app
    except ImportError as error:
        raise UserError(f"serving needs {error.name}; run `pip install 'nearkin[serve]'`") from error
    allowed = [host_name(name) for name in allow_host or ()]
    token = os.environ.get("NEARKIN_TOKEN") or None if token is None else token
    if token is not None:
        check_token(token)
    with listen(host, port) as listening:
        local = is_local(listening)
        random_token = secrets.token_urlsafe(24) if token is None and not local else None
        app = make_app(gallery, hosts=names(host, allowed, local), token=token or random_token)
        address = f"http://{_in_address(host)}:{listening.getsockname()[1]}"
        print(f"{len(gallery):,} items at {address} (stop with Ctrl-C)", flush=True)
        if random_token is not None:
            print(f"open {address}/?token={random_token}", flush=True)
        elif token is not None:  # not printed: the user knows it
            print(f"open {address}/?token=TOKEN with your token", flush=True)
        if open_browser:
            webbrowser.open(address)  # without the token: every user can see the command line of a browser
        with suppress(KeyboardInterrupt):  # uvicorn has shut down and raises the signal again
            http_server(app).run(sockets=[listening])


def http_server(app: FastAPI) -> uvicorn.Server:
    """A server with deadlines. It does not log requests, because their URLs may contain the token."""
    import uvicorn

    from nearkin.serve.connections import BACKLOG, GuardedProtocol

    config = uvicorn.Config(
        app,
        http=GuardedProtocol,
        ws="none",
        backlog=BACKLOG,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    return uvicorn.Server(config)


def names(host: str, allowed: Sequence[str], local: bool) -> set[str] | None:
    """The host names to accept. None: any, because the names that other machines use are not known.

    Args:
        local: whether only this machine can connect.

    >>> sorted(names("127.0.0.1", ["images.example"], local=True))
    ['127.0.0.1', '[::1]', 'images.example', 'localhost']
    """
    if not allowed and not local:
        return None
    return {*LOOPBACK, _in_address(host).lower(), *allowed}


def host_name(given: str) -> str:
    """Checks a host name and returns it in lower case, as browsers send it.

    >>> host_name("Images.example")
    'images.example'
    """
    if not given.isascii():
        raise UserError(f"host name '{given}' is not ASCII; use its encoded form, which starts with xn--")
    if not re.fullmatch(r"[\w.-]+|\[[\da-fA-F:.]+\]", given):
        raise UserError(f"'{given}' is not a host name; use the name alone, such as images.example")
    return given.lower()


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on this address.

    >>> with listen("127.0.0.1", 0) as taken:
    ...     listen("127.0.0.1", taken.getsockname()[1])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    nearkin.errors.UserError: port ... is in use; choose another, or port=0 for any free one
    """
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OverflowError:
        raise UserError(f"port must be from 0 to 65535, got {port}") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"port {port} is in use; choose another, or port=0 for any free one") from None
        reason = (error.strerror or str(error)).lower()
        raise UserError(f"cannot serve at {host}:{port}: {reason}; choose another host or port") from None


def _in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def is_local(listening: socket.socket) -> bool:
    """Whether the socket's own address is a loopback address, however the host was written."""
    address = ipaddress.ip_address(listening.getsockname()[0])
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
