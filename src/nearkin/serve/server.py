"""Serves a gallery until Ctrl-C: to this machine only, unless another address is asked for."""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
import webbrowser
from collections.abc import Sequence
from contextlib import suppress

from nearkin.errors import UserError
from nearkin.search import Gallery

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


def serve(
    gallery: Gallery,
    host: str = "127.0.0.1",
    port: int = 8000,
    open_browser: bool = False,
    allow_host: Sequence[str] | None = None,
) -> None:
    """Answers at ``http://host:port`` until Ctrl-C.

    Args:
        port: 0 takes any free one.
        allow_host: further names by which browsers may call it, such as that of a proxy in front of it.
    """
    try:
        import python_multipart  # noqa: F401
        import uvicorn

        from nearkin.serve.app import make_app
    except ImportError as error:
        raise UserError(f"serving needs {error.name}; run `pip install 'nearkin[serve]'`") from error
    allowed = [host_name(name) for name in allow_host or ()]
    with listen(host, port) as listening:
        local = only_this_machine(listening)
        address = f"http://{_in_address(host)}:{listening.getsockname()[1]}"
        print(f"{len(gallery):,} items at {address} (stop with Ctrl-C)", flush=True)
        if not local:
            print("everyone who reaches this address can search and see the images", flush=True)
        if open_browser:
            webbrowser.open(address)  # it already listens: the browser waits until it is answered
        app = make_app(gallery, hosts=names(host, allowed, local))
        config = uvicorn.Config(app, log_level="warning", server_header=False, timeout_graceful_shutdown=3)
        with suppress(KeyboardInterrupt):  # uvicorn has ended in order and passes on what made it end
            uvicorn.Server(config).run(sockets=[listening])


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
