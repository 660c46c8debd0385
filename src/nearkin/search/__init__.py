"""Vectors → neighbours for a user: galleries of pictures, and the stores that keep their vectors."""

from __future__ import annotations

from pathlib import Path

from nearkin.errors import UserError
from nearkin.search.gallery import Gallery
from nearkin.search.milvus_address import FORMS
from nearkin.search.store import Entry, Hit, Store

__all__ = ["Entry", "Gallery", "Hit", "Store", "open_store"]


def open_store(address: str, folder: Path, dim: int, create: bool = True) -> Store:
    """The store of a gallery.

    Args:
        address: empty for files in the gallery's folder; ``milvus://host:19530/collection`` for a Milvus cluster, with
            ``?tls`` at its end for an encrypted connection; ``milvus:///folder/file.db``, or ``milvus://./file.db`` in
            the gallery's folder, for embedded Milvus.
        folder: the gallery's.
        dim: of the vectors.
        create: whether it is made where there is none.

    >>> open_store("redis://localhost", Path(), 64)
    Traceback (most recent call last):
    nearkin.errors.UserError: the store 'redis://localhost' is unknown; leave it out to keep the vectors in the \
gallery's folder, or write milvus://host:19530/collection, or milvus://./items.db for a file
    """
    if not address:
        from nearkin.search.local import LocalStore

        return LocalStore(folder, dim, create)
    if address.startswith("milvus://"):
        from nearkin.search.milvus import open_milvus

        return open_milvus(address, folder, dim, create)
    raise UserError(
        f"the store '{address}' is unknown; leave it out to keep the vectors in the gallery's folder, or write {FORMS}"
    )
