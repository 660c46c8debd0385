"""One writer at a time: a lock on a file, which ends with the process that holds it."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path
from typing import IO

from nearkin.errors import UserError
from nearkin.files import cannot_write


def hold(path: Path) -> IO[str]:
    """Holds the lock in this file until what is returned is closed; refuses at once where another holds it.

    >>> from tempfile import mkdtemp
    >>> with hold(Path(mkdtemp()) / "gallery.lock"):
    ...     "nobody else writes"
    'nobody else writes'
    """
    try:
        held = path.open("a")
    except OSError as error:
        raise cannot_write(path.parent, error) from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        held.close()
        if error.errno != errno.EWOULDBLOCK:
            raise cannot_write(path, error) from error
        raise UserError(f"another process is writing to {path.parent}; wait for it to end") from error
    return held
