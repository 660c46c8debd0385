"""Serves a gallery until Ctrl-C: to this machine only, unless another address is asked for."""

from __future__ import annotations

import errno
import ipaddress
import socket
import webbrowser
from pathlib import Path

from nearkin.errors import UserError

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


def serve(path: str | Path, host: str = "127.0.0.1", port: int = 8000, open_browser: bool = False) -> None:
    """Opens the gallery and answers at ``http://host:port``; port 0 takes any free one."""
    try:
        import python_multipart  # noqa: F401
        import uvicorn

        from nearkin.serve.app import make_app
    except ImportError as error:
        raise UserError(f"serving needs {error.name}; run `pip install 'nearkin[serve]'`") from error
    from nearkin.search.gallery import Gallery

    listening = listen(host, port)
    with listening:
        gallery = Gallery.open(path)
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{listening.getsockname()[1]}"
        print(f"{len(gallery):,} items at {address} (stop with Ctrl-C)", flush=True)
        hosts = {*LOOPBACK, name.lower()} if _only_this_machine(host) else None
        if hosts is None:
            print("everyone who reaches this address can search and see the pictures", flush=True)
        if open_browser:
            webbrowser.open(address)  # it already listens: the browser waits until it is answered
        config = uvicorn.Config(
            make_app(gallery, hosts=hosts), log_level="warning", server_header=False, timeout_graceful_shutdown=3
        )
        try:
            uvicorn.Server(config).run(sockets=[listening])
        except KeyboardInterrupt:
            pass  # uvicorn has ended in order and passes on what made it end
        finally:
            gallery.close()


def listen(host: str, port: int) -> socket.socket:
    """A socket at this address, or one sentence why there can be none.

    >>> with listen("127.0.0.1", 0) as taken:
    ...     listen("127.0.0.1", taken.getsockname()[1])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    nearkin.errors.UserError: port ... is in use; choose another with --port (0 takes any free one)
    """
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OverflowError:
        raise UserError(f"port {port} does not exist; choose one from 0 to 65535") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"port {port} is in use; choose another with --port (0 takes any free one)") from None
        reason = (error.strerror or str(error)).lower()
        raise UserError(f"cannot serve at {host}:{port}: {reason}; choose another --host or --port") from None


def _only_this_machine(host: str) -> bool:
    """
    >>> _only_this_machine("localhost"), _only_this_machine("::1"), _only_this_machine("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
