"""SQLite's errors as sentences that say what to do."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nearkin.errors import UserError
from nearkin.files import cannot_write


@contextmanager
def in_words(path: Path) -> Iterator[None]:
    """Around all use of the file at ``path``."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise  # a mistake of the program's: used after it was closed
    except sqlite3.Error as error:
        kind = getattr(error, "sqlite_errorname", "").removeprefix("SQLITE_").split("_")[0]
        if kind == "FULL":
            raise cannot_write(path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))) from error
        if kind == "READONLY":
            raise cannot_write(path, OSError(str(error))) from error
        if kind in ("BUSY", "LOCKED"):
            raise UserError(f"another process is writing to {path.parent}; wait for it to end") from error
        if kind in ("CANTOPEN", "IOERR", "PERM", "NOMEM"):
            raise UserError(f"could not read or write {path}: {error}; see to its permissions and its disk") from error
        raise UserError(f"{path} is damaged or no gallery's ({error}); make the gallery again") from error
