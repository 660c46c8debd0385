"""Milvus addresses as users write them, and the access token for their hosts."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from urllib.parse import urlsplit

from nearkin.errors import UserError

log = logging.getLogger("nearkin")

TOKEN = "NEARKIN_MILVUS_TOKEN"
TOKEN_FORM = "milvus.example.com=user:password"
PORT = 19530
FORMS = f"milvus://host:{PORT}/collection, or milvus://./items.db for a file"


def parse_address(address: str, folder: Path) -> tuple[str, str]:
    """Returns the address for the Milvus client and the collection; a relative file is in the gallery's folder.

    >>> parse_address("milvus://localhost/photos", Path())
    ('http://localhost:19530', 'photos')
    >>> parse_address("milvus://host", Path())  # doctest: +NORMALIZE_WHITESPACE
    Traceback (most recent call last):
    nearkin.errors.UserError: the address 'milvus://host' names no collection;
    use milvus://host:19530/collection, or milvus://./items.db for a file
    """
    rest = address.removeprefix("milvus://")
    if rest.startswith(("/", "./", "../")):
        file = (folder / rest).resolve()
        if file.suffix != ".db" or not file.parent.is_dir():
            raise UserError(
                f"Milvus cannot store its data at {file}; choose a file name that ends in .db, in an existing folder"
            )
        return str(file), "gallery"
    try:
        parts = urlsplit(f"//{rest}")
        host, port = parts.hostname, parts.port or PORT
    except ValueError as error:
        raise UserError(f"the address is not valid ({error}); use {FORMS}") from error
    if "@" in parts.netloc:
        raise UserError(
            "an address must not contain a password, because the gallery stores it; "
            f"set the environment variable {TOKEN}={TOKEN_FORM} instead"
        )
    if host and host.endswith(".db"):
        raise UserError(f"the address '{address}' names a host; for a file, use milvus://./{host}")
    if not host or parts.query not in ("", "tls") or not re.fullmatch(r"/[A-Za-z_]\w{0,254}", parts.path, re.ASCII):
        raise UserError(f"the address '{address}' names no collection; use {FORMS}")
    host = f"[{host}]" if ":" in host else host
    return f"http{'s' if parts.query else ''}://{host}:{port}", parts.path[1:]


def token_for(address: str) -> str:
    """The token in the environment if it is for the host of this address, ``http://host:19530``; otherwise "".

    The variable names the host, because an address may come from someone else's gallery.
    """
    value = os.environ.get(TOKEN, "")
    if not value:
        return ""
    host, _, token = value.partition("=")
    if not token or not re.fullmatch(r"[\w.-]+|\[[\da-fA-F:]+\]", host):
        raise UserError(f"{TOKEN} does not name the host it is for; write {TOKEN}={TOKEN_FORM}")
    if host.strip("[]").lower() != urlsplit(address).hostname:
        log.warning("the token in %s is for another host and is not sent to %s", TOKEN, address)
        return ""
    if not address.startswith(("https:", "http://localhost:", "http://127.0.0.1:")):
        log.warning("the token is sent unencrypted to %s; if the server offers TLS, add ?tls to the address", address)
    return token
