"""Serves a gallery until Ctrl-C: to this machine only, unless another address is asked for."""

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

STOP_SECONDS = 1  # for requests to end, after Ctrl-C
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


def serve(
    gallery: Gallery,
    host: str = "127.0.0.1",
    port: int = 8000,
    open_browser: bool = False,
    allow_host: Sequence[str] | None = None,
    token: str | None = None,
) -> None:
    """Answers at ``http://host:port`` until Ctrl-C.

    Args:
        port: 0 takes any free one.
        allow_host: further names by which browsers may call it, such as that of a proxy in front of it.
        token: what a client must know; None: the environment's NEARKIN_TOKEN. Where there is none and other machines
            reach it, one is made up and printed.
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
        local = only_this_machine(listening)
        made_up = secrets.token_urlsafe(24) if token is None and not local else None
        app = make_app(gallery, hosts=names(host, allowed, local), token=token or made_up)
        address = f"http://{_in_address(host)}:{listening.getsockname()[1]}"
        print(f"{len(gallery):,} items at {address} (stop with Ctrl-C)", flush=True)
        if made_up is not None:
            print(f"open {address}/?token={made_up}", flush=True)
        elif token is not None:  # whoever gave it knows it
            print(f"open {address}/?token= with the token at its end", flush=True)
        if open_browser:
            webbrowser.open(address)  # without the token: all users of this machine see what browsers are started with
        with suppress(KeyboardInterrupt):  # uvicorn has ended in order and passes on what made it end
            http_server(app).run(sockets=[listening])


def http_server(app: FastAPI) -> uvicorn.Server:
    """A server with deadlines; it keeps no log of requests, which may name the token."""
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
    """The names by which the server may be called; None (any) where other machines reach it, by whatever name.

    Args:
        local: whether only this machine reaches it.

    >>> sorted(names("127.0.0.1", ["pictures.example"], local=True))
    ['127.0.0.1', '[::1]', 'localhost', 'pictures.example']
    """
    if not allowed and not local:
        return None
    return {*LOOPBACK, _in_address(host).lower(), *allowed}


def host_name(given: str) -> str:
    """A name as browsers send it.

    >>> host_name("Pictures.example")
    'pictures.example'
    """
    if not given.isascii():
        raise UserError(f"browsers send '{given}' in another form; give that one, which begins with xn--")
    if not re.fullmatch(r"[\w.-]+|\[[\da-fA-F:.]+\]", given):
        raise UserError(f"'{given}' is not a host name; give it alone, like pictures.example")
    return given.lower()


def listen(host: str, port: int) -> socket.socket:
    """A socket at this address.

    >>> with listen("127.0.0.1", 0) as taken:
    ...     listen("127.0.0.1", taken.getsockname()[1])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    nearkin.errors.UserError: port ... is in use; choose another, or port=0 for any free one
    """
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OverflowError:
        raise UserError(f"port {port} does not exist; choose one from 0 to 65535") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"port {port} is in use; choose another, or port=0 for any free one") from None
        reason = (error.strerror or str(error)).lower()
        raise UserError(f"cannot serve at {host}:{port}: {reason}; choose another host or port") from None


def _in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def only_this_machine(listening: socket.socket) -> bool:
    """Judged by the address that it got, not by how that was written."""
    address = ipaddress.ip_address(listening.getsockname()[0])
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
