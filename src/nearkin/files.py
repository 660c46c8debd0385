"""The one place that writes files: whole or not at all, so that nothing already saved can be damaged.

And the one that opens files whose path comes from a user or from another file: only regular files, because opening a
FIFO blocks, and opening a device may do anything.
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

from nearkin.errors import OutOfRoom, UserError

Kind = TypeVar("Kind")

LARGEST_JSON = 16 * 2**20  # bytes; nearkin's own descriptions are a thousand times smaller
NOT_REGULAR = "not a regular file"
UNFINISHED = ".nearkin-"  # how the names of files begin that are not yet whole


@contextmanager
def atomic_path(target: Path, permissions: int = 0o666) -> Iterator[Path]:
    """Yields a temporary path beside ``target``; it replaces ``target`` only if the block ends well.

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
        # mkstemp makes private files; a user's results get the permissions of any other new file.
        partial.chmod(permissions & ~_umask())
        partial.replace(target)
    except OSError as error:
        raise cannot_write(target, error) from error
    finally:
        partial.unlink(missing_ok=True)
        os.close(lock)


@contextmanager
def unfinished_folder(target: Path) -> Iterator[Path]:
    """Yields an empty folder beside ``target``, which must be moved there when it is whole; else it is deleted."""
    sweep(target.parent, target.name)
    partial, lock = _claimed(lambda: tempfile.mkdtemp(prefix=f"{UNFINISHED}{target.name}-", dir=target.parent))
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        os.close(lock)


def sweep(folder: Path, name: str = "") -> None:
    """Deletes what killed processes left unfinished in a folder; what a living process writes is locked and stays.

    Args:
        name: only what was to become this.
    """
    for partial in folder.glob(f"{UNFINISHED}{name}*"):
        with suppress(OSError):  # another process sweeps too, or the folder cannot be written to
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
    """A new temporary file or folder and the lock that keeps `sweep` away; repeated where that was faster."""
    while True:
        partial = Path(make())
        try:
            lock = _locked(partial)
        except (BlockingIOError, FileNotFoundError):
            continue
        except OSError:  # a file system without locks, where nothing is ever swept
            return partial, os.open(partial, os.O_RDONLY)
        if partial.exists():
            return partial, lock
        os.close(lock)


def _locked(partial: Path) -> int:
    """A handle that holds the lock of a file or folder; an OSError where another process holds it."""
    handle = os.open(partial, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(handle)
        raise
    return handle


def cannot_write(target: Path, error: OSError) -> OutOfRoom:
    """A failed write in words: what was not written, why, and what to do about it."""
    reason = (error.strerror or str(error)).lower()
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return OutOfRoom(
            f"could not write {target}: {reason}; files that were saved earlier are intact; "
            "free some space and try again (`nearkin resume` continues a training run)"
        )
    return OutOfRoom(f"could not write {target}: {reason}; choose another folder or fix its permissions")


def write_text(target: Path, text: str) -> None:
    with atomic_path(target) as partial:
        partial.write_text(text, encoding="utf-8")


def write_bytes(target: Path, content: bytes | memoryview) -> None:
    """For libraries that would report a full disk in words of their own if they wrote the file themselves."""
    with atomic_path(target) as partial:
        partial.write_bytes(content)


def open_regular(path: Path, follow: bool = True) -> BufferedReader:
    """Opens a file to read; an OSError where it is none, but a FIFO, a socket or a device, which is never opened.

    Args:
        follow: whether ``path`` may be a link. Not in folders that may come from someone else.

    >>> open_regular(Path("/dev/zero"))
    Traceback (most recent call last):
    OSError: not a regular file
    """
    check_regular(path, follow)
    # What the path names may have been exchanged since: then it neither blocks nor stays open.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW))
    file = os.fdopen(handle, "rb")
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        file.close()
        raise OSError(NOT_REGULAR)
    return file


def check_regular(path: Path, follow: bool = True) -> Path:
    """The path, for libraries that open files themselves; an OSError as of `open_regular`."""
    mode = path.stat(follow_symlinks=follow).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError("a folder, not a file")
    if stat.S_ISLNK(mode):
        raise OSError("a symbolic link, which is not followed here")
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
    """What nearkin wrote, or someone else in its place: links are not followed, and what is far too large is refused.

    Args:
        kind: what it must be: dict, list, float.
        finite: whether numbers such as 1e999 and NaN are refused; not of scores, of which one may be NaN.
    """
    with open_regular(file, follow=False) as stream:
        content = stream.read(LARGEST_JSON + 1)
    with _readable(file, "JSON"):
        if len(content) > LARGEST_JSON:
            raise ValueError(f"it is larger than {LARGEST_JSON:,} bytes")
        return parse_json(content, kind, finite)


def parse_json(text: str | bytes, kind: type[Kind], finite: bool = True) -> Kind:
    """The same of text; what is wrong with it is a ValueError.

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
    """What a TOML file of a user's holds; whether its numbers are finite is checked with the settings."""
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
    """Of several processes that would all make ``target``, one does; the others wait, and then find it made."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = open_lock(target.with_suffix(".lock"))
    except OSError as error:
        raise cannot_write(target, error) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def open_lock(path: Path) -> BufferedReader:
    """An empty file to lock, made where there is none; an OSError for anything but a regular file."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    file = os.fdopen(handle, "rb")
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        file.close()
        raise OSError(NOT_REGULAR)
    return file


def cache_folder() -> Path:
    """Where things that can be computed again are kept: ``$NEARKIN_CACHE`` or ``~/.cache/nearkin``."""
    chosen = os.environ.get("NEARKIN_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "nearkin"


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
