"""Reads and writes files safely.

Files are written completely or not at all, so that nothing already saved can be damaged. Paths that come from a user or
from another file are opened only if they are regular files: opening a FIFO blocks, and opening a device may have side
effects.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import shutil
import stat
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar, overload

from nearkin.errors import ResourceError, UserError

Kind = TypeVar("Kind")

LARGEST_JSON = 16 * 2**20  # bytes; nearkin's own descriptions are a thousand times smaller
NOT_REGULAR = "not a regular file"
UNFINISHED = ".nearkin-"  # prefix of the names of unfinished files and folders


@contextmanager
def atomic_path(target: Path, permissions: int = 0o666) -> Iterator[Path]:
    """Yields a temporary path next to ``target``; the file replaces ``target`` only if the block succeeds.

    >>> with atomic_path(Path("scores.json")) as partial:  # doctest: +SKIP
    ...     partial.write_text("{}")
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial, lock = _claimed(lambda: _empty_file(target))
    except OSError as error:
        raise cannot_write(target, error) from error
    try:
        yield partial
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        # mkstemp makes private files; results get the permissions of ordinary new files.
        partial.chmod(permissions & ~_umask())
        partial.replace(target)
    except OSError as error:
        raise cannot_write(target, error) from error
    finally:
        partial.unlink(missing_ok=True)
        os.close(lock)


@contextmanager
def unfinished_folder(target: Path) -> Iterator[Path]:
    """Yields an empty folder next to ``target``; the caller moves it to ``target`` when complete, or it is deleted."""
    sweep(target.parent, target.name)
    partial, lock = _claimed(lambda: tempfile.mkdtemp(prefix=f"{UNFINISHED}{target.name}-", dir=target.parent))
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        os.close(lock)


def sweep(folder: Path, name: str = "") -> None:
    """Deletes unfinished files of killed processes in a folder; those of running processes are locked and stay.

    Args:
        name: only delete what would have become a file or folder of this name.
    """
    for partial in folder.glob(f"{UNFINISHED}{name}*"):
        with suppress(OSError):  # another process sweeps too, or the folder is read-only
            lock = _locked(partial)
            try:
                if stat.S_ISDIR(os.fstat(lock).st_mode):
                    shutil.rmtree(partial)
                else:
                    partial.unlink()
            finally:
                os.close(lock)


def _empty_file(target: Path) -> str:
    handle, name = tempfile.mkstemp(target.suffix, f"{UNFINISHED}{target.stem}-", target.parent)
    os.close(handle)
    return name


def _claimed(make: Callable[[], str]) -> tuple[Path, int]:
    """Makes a temporary file or folder and locks it against `sweep`; tries again if `sweep` was faster."""
    while True:
        partial = Path(make())
        try:
            lock = _locked(partial)
        except (BlockingIOError, FileNotFoundError):
            continue
        except OSError:  # the file system has no locks, so `sweep` never deletes anything
            return partial, os.open(partial, os.O_RDONLY)
        if partial.exists():
            return partial, lock
        os.close(lock)


def _locked(partial: Path) -> int:
    """Locks a file or folder and returns the handle; raises OSError if another process holds the lock."""
    handle = os.open(partial, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(handle)
        raise
    return handle


def cannot_write(target: Path, error: OSError) -> ResourceError:
    """The error for a failed write: what was not written, why, and what to do."""
    reason = error.strerror.lower() if error.strerror else str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return ResourceError(
            f"could not write {target}: {reason}; files that were saved earlier are intact; "
            "free some space and try again (`nearkin resume` continues a training run)"
        )
    return ResourceError(f"could not write {target}: {reason}; choose another folder or fix its permissions")


def check_writable(folder: Path) -> None:
    """Raises the error that writing into this folder would raise, before anything slow; creates nothing.

    >>> check_writable(Path("/dev/null/runs"))
    Traceback (most recent call last):
    nearkin.errors.ResourceError: could not write /dev/null/runs: /dev/null is not a folder; choose another folder or \
fix its permissions
    """
    existing = next(place for place in (folder, *folder.absolute().parents) if os.path.lexists(place))
    if not existing.is_dir():
        raise cannot_write(folder, OSError(f"{existing} is not a folder"))
    if not os.access(existing, os.W_OK | os.X_OK):
        raise cannot_write(folder, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def write_text(target: Path, text: str) -> None:
    with atomic_path(target) as partial:
        partial.write_text(text, encoding="utf-8")


def write_bytes(target: Path, content: bytes | memoryview) -> None:
    """Writes what a library returns as bytes: its own write would report a full disk in its own words."""
    with atomic_path(target) as partial:
        partial.write_bytes(content)


def open_regular(path: Path, follow: bool = True) -> BufferedReader:
    """Opens a file for reading; raises OSError for a folder, FIFO, socket or device, without opening it.

    Args:
        follow: whether ``path`` may be a link. Set it to False in untrusted folders.

    >>> open_regular(Path("/dev/zero"))
    Traceback (most recent call last):
    OSError: not a regular file
    """
    check_regular(path, follow)
    # The file may have been replaced since the check: opening it must not block, and it is checked again.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW))
    file = os.fdopen(handle, "rb")
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        file.close()
        raise OSError(NOT_REGULAR)
    return file


def check_regular(path: Path, follow: bool = True) -> Path:
    """Returns the path, for libraries that open files themselves; raises OSError as `open_regular` does."""
    mode = path.stat(follow_symlinks=follow).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError("it is a folder, not a file")
    if stat.S_ISLNK(mode):
        raise OSError("it is a symbolic link, which is not followed here")
    if not stat.S_ISREG(mode):
        raise OSError(NOT_REGULAR)
    return path


def read_text(file: Path, follow: bool = True) -> str:
    with _readable(file, "UTF-8"), open_regular(file, follow) as stream:
        return stream.read().decode("utf-8")


@overload
def read_json(file: Path, *, finite: bool = ...) -> Any: ...


@overload
def read_json(file: Path, kind: type[Kind], finite: bool = ...) -> Kind: ...


def read_json(file: Path, kind: type = object, finite: bool = True) -> Any:
    """Reads an untrusted JSON file: does not follow links, and refuses files that are far too large.

    Args:
        kind: the type it must have: dict, list, float.
        finite: refuse numbers such as 1e999 and NaN. Not for scores, which may be NaN.
    """
    with open_regular(file, follow=False) as stream:
        content = stream.read(LARGEST_JSON + 1)
    with _readable(file, "JSON"):
        if len(content) > LARGEST_JSON:
            raise ValueError(f"it is larger than {LARGEST_JSON:,} bytes")
        return parse_json(content, kind, finite)


def parse_json(text: str | bytes, kind: type[Kind], finite: bool = True) -> Kind:
    """Parses JSON; raises ValueError if it is invalid or not of type ``kind``.

    >>> parse_json('{"k": 3}', dict)
    {'k': 3}
    >>> parse_json("[1e999]", list)
    Traceback (most recent call last):
    ValueError: 1e999 is not a finite number
    """
    options: dict[str, Any] = {"parse_float": _finite, "parse_constant": _finite} if finite else {}
    try:
        found = json.loads(text, **options)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, kind):
        raise ValueError(f"it contains a {type(found).__name__}, not a {kind.__name__}")
    return found


def read_toml(file: Path) -> dict[str, Any]:
    """Reads a user's TOML file; `nearkin.fields` checks that its numbers are finite."""
    with _readable(file, "TOML"):
        try:
            return tomllib.loads(read_text(file))
        except RecursionError:
            raise ValueError("it is nested too deeply") from None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


@contextmanager
def _readable(file: Path, what: str) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{file} is not valid {what}: {error}; fix it, or restore the original") from error


def write_json(target: Path, value: Any) -> None:
    write_text(target, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def one_at_a_time(target: Path) -> Iterator[None]:
    """Lets one process at a time make ``target``; the others wait and then find it."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = open_lock(target.with_suffix(".lock"))
    except OSError as error:
        raise cannot_write(target, error) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def open_lock(path: Path) -> BufferedReader:
    """Opens an empty file to lock, and creates it if needed; raises OSError for anything but a regular file."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    file = os.fdopen(handle, "rb")
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        file.close()
        raise OSError(NOT_REGULAR)
    return file


def cache_folder() -> Path:
    """Returns the folder for what can be computed again: ``$NEARKIN_CACHE`` or ``~/.cache/nearkin``."""
    chosen = os.environ.get("NEARKIN_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "nearkin"


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
