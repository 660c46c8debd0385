"""A real server in a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import FastAPI

from nearkin.serve.server import http_server, listen


@contextmanager
def running(app: FastAPI) -> Iterator[tuple[str, int]]:
    """Yields the address of the server."""
    listening = listen("127.0.0.1", 0)
    server = http_server(app)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield listening.getsockname()
    finally:
        server.should_exit = True
        thread.join(10)
    assert not thread.is_alive()
