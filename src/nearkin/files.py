"""The one place that writes files: whole or not at all, so that nothing already saved can be damaged."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nearkin.errors import OutOfRoom


@contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """Yields a temporary path beside ``target``; it replaces ``target`` only if the block ends well.

    >>> with atomic_path(Path("scores.json")) as partial:  # doctest: +SKIP
    ...     partial.write_text("{}")
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.stem}-", suffix=target.suffix)
        os.close(handle)
    except OSError as error:
        raise cannot_write(target, error) from error
    partial = Path(name)
    try:
        yield partial
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        # mkstemp makes private files; a user's results get the permissions of any other new file.
        partial.chmod(0o666 & ~_umask())
        partial.replace(target)
    except OSError as error:
        raise cannot_write(target, error) from error
    finally:
        partial.unlink(missing_ok=True)


def cannot_write(target: Path, error: OSError) -> OutOfRoom:
    """A failed write in words: what was not written, why, and what to do about it."""
    reason = (error.strerror or str(error)).lower()
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return OutOfRoom(
            f"could not write {target}: {reason}; what was saved before is unharmed: "
            "free some space and try again (a training run goes on with `nearkin resume`)"
        )
    return OutOfRoom(f"could not write {target}: {reason}; choose another place or mend its permissions")


def write_text(target: Path, text: str) -> None:
    with atomic_path(target) as partial:
        partial.write_text(text, encoding="utf-8")


def write_bytes(target: Path, content: bytes | memoryview) -> None:
    """For libraries that would report a full disk in words of their own if they wrote the file themselves."""
    with atomic_path(target) as partial:
        partial.write_bytes(content)


def read_json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def write_json(target: Path, value: Any) -> None:
    write_text(target, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def one_at_a_time(target: Path) -> Iterator[None]:
    """Of several processes that would all make ``target``, one does; the others wait, and then find it made."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = target.with_suffix(".lock").open("w")
    except OSError as error:
        raise cannot_write(target, error) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def cache_folder() -> Path:
    """Where things that can be computed again are kept: ``$NEARKIN_CACHE`` or ``~/.cache/nearkin``."""
    chosen = os.environ.get("NEARKIN_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "nearkin"


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
