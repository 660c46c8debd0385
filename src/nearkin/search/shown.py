"""Which files a gallery shows: those below folders that this user has indexed.

A gallery may come from someone else, whose items could name any image on this disk. So the folders are recorded in the
gallery when they are indexed, with a seal that only this user can make; what others have recorded counts for nothing.
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

from nearkin.errors import OutOfRoom
from nearkin.files import atomic_path, cache_folder, one_at_a_time, open_regular, read_json, write_json
from nearkin.names import is_utf8

log = logging.getLogger("nearkin")

RECORD, KEY = "folders.json", "gallery.key"


class ShownFiles:
    """The files that a gallery shows.

    Args:
        gallery: its folder, of which everything is shown that does not lead out of it.
        allowed: further folders, or files.
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
                "%s and perhaps others of the gallery are not shown, because they were not indexed here; "
                'if you trust the gallery, name their folder: allow_path="%s"',
                path,
                Path(path).parent,
            )
        return False


def record_folders(gallery: Path, folders: Iterable[Path]) -> None:
    """Adds folders to those that were indexed; not those whose names are not text, of which nothing is indexed."""
    known = indexed_folders(gallery)
    new = {folder for folder in folders if is_utf8(str(folder)) and not _is_below(str(folder), known)}
    if new:
        kept = sorted(str(folder) for folder in {*known, *new} if not _is_below(str(folder.parent), [*known, *new]))
        try:
            write_json(gallery / RECORD, {"folders": kept, "seal": _seal(kept)})
        except OutOfRoom as error:
            log.warning("images are shown only with allow_path=..., because: %s", error)


def indexed_folders(gallery: Path) -> list[Path]:
    """The folders that this user has indexed into a gallery; none of those that someone else has recorded."""
    with suppress(OSError, ValueError, KeyError, TypeError, OutOfRoom):
        kept = read_json(gallery / RECORD)
        if hmac.compare_digest(_seal(kept["folders"]), kept["seal"]):
            return [Path(folder) for folder in kept["folders"]]
    return []


def _is_below(path: str, folders: Iterable[Path]) -> bool:
    """Of a path without detours, as galleries keep them."""
    return path == os.path.abspath(path) and any(Path(path).is_relative_to(folder) for folder in folders)  # noqa: PTH100


def _seal(folders: list[str]) -> str:
    return hmac.new(_key(), json.dumps(folders).encode(), hashlib.sha256).hexdigest()


def _key() -> bytes:
    """This user's own, made when it is first needed. Without it galleries must be indexed again, which is quick."""
    file = cache_folder() / KEY
    if not file.exists():
        with one_at_a_time(file):
            if not file.exists():
                with atomic_path(file, permissions=0o600) as partial:
                    partial.write_bytes(secrets.token_bytes(32))
    with open_regular(file) as stream:
        return stream.read()
