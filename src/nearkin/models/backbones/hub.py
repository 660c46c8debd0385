"""Downloads from the Hugging Face hub that fail at once where there is no connection."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit
from urllib.request import getproxies

CONNECT_SECONDS = 5.0


@contextmanager
def one_attempt() -> Iterator[None]:
    """Keeps the hub from retrying for a minute: if a first connection fails, it only looks in its cache."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or not connects(constants.ENDPOINT)
    try:
        yield
    except Exception as error:
        if constants.HF_HUB_OFFLINE and not before:  # the hub would say that the user turned it off
            raise ConnectionError(f"{constants.ENDPOINT} cannot be reached") from error
        raise
    finally:
        constants.HF_HUB_OFFLINE = before


def connects(address: str) -> bool:
    """Tries once to connect; True behind a proxy, which may connect where this machine cannot."""
    if getproxies().get("https"):
        return True
    parts = urlsplit(address)
    try:
        socket.create_connection((parts.hostname, parts.port or 443), CONNECT_SECONDS).close()
    except OSError:
        return False
    return True
