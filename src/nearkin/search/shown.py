"""The files that a gallery may show: those below folders that this user has indexed.

A gallery may come from someone else, and its items could name any image on this disk. Indexing therefore records its
folders in the gallery, signed with a key of this user. Records of other users are ignored.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from nearkin.errors import ResourceError
from nearkin.files import atomic_path, cache_folder, one_at_a_time, open_regular, read_json, write_json
from nearkin.names import is_utf8

log = logging.getLogger("nearkin")

RECORD, KEY = "folders.json", "gallery.key"


class ShownFiles:
    """The files that a gallery may show.

    Args:
        gallery: the gallery's folder. Files inside it may be shown, but not links that lead out of it.
        allowed: further folders or files.
    """

    def __init__(self, gallery: Path, allowed: Sequence[str | Path] = ()) -> None:
        self._gallery = gallery
        self._allowed = [Path(os.path.abspath(Path(path).expanduser())) for path in allowed]  # noqa: PTH100
        self._indexed: list[Path] = []
        self._warned = False

    def __contains__(self, path: str) -> bool:
        if _is_below(path, [*self._allowed, *self._indexed]):
            return True
        self._indexed = indexed_folders(self._gallery)  # another process may have added some
        if _is_below(path, self._indexed) or _is_below(os.path.realpath(path), [self._gallery.resolve()]):
            return True
        if not self._warned:
            self._warned = True
            log.warning(
                "%s is not shown, because you did not index it, and so may be others; "
                'if you trust the gallery, pass allow_path="%s"',
                path,
                Path(path).parent,
            )
        return False


def record_folders(gallery: Path, folders: Iterable[Path]) -> None:
    """Adds folders to the record. Folders whose names are not UTF-8 are skipped: their files are not indexed."""
    known = indexed_folders(gallery)
    new = {folder for folder in folders if is_utf8(str(folder)) and not _is_below(str(folder), known)}
    if new:
        kept = sorted(str(folder) for folder in {*known, *new} if not _is_below(str(folder.parent), [*known, *new]))
        try:
            write_json(gallery / RECORD, {"folders": kept, "signature": _signature(kept)})
        except ResourceError as error:
            log.warning("images can only be shown with allow_path=...: %s", error)


def indexed_folders(gallery: Path) -> list[Path]:
    """The folders that this user has indexed into a gallery; records of other users do not count."""
    with suppress(OSError, ValueError, KeyError, TypeError, ResourceError):
        kept = read_json(gallery / RECORD)
        if hmac.compare_digest(_signature(kept["folders"]), kept["signature"]):
            return [Path(folder) for folder in kept["folders"]]
    return []


def _is_below(path: str, folders: Iterable[Path]) -> bool:
    """Whether a path is below one of the folders; it must be normalised, without ``..``, as galleries store it."""
    return path == os.path.abspath(path) and any(Path(path).is_relative_to(folder) for folder in folders)  # noqa: PTH100


def _signature(folders: list[str]) -> str:
    return hmac.new(_key(), json.dumps(folders).encode(), hashlib.sha256).hexdigest()


def _key() -> bytes:
    """This user's secret key, created on first use. If it is lost, index the galleries again, which is quick."""
    file = cache_folder() / KEY
    if not file.exists():
        with one_at_a_time(file):
            if not file.exists():
                with atomic_path(file, permissions=0o600) as partial:
                    partial.write_bytes(secrets.token_bytes(32))
    with open_regular(file) as stream:
        return stream.read()
