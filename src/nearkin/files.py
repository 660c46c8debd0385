"""The one place that writes files, whole or not at all, so that nothing already saved can be damaged; and reads them."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, overload

from nearkin.errors import OutOfRoom, UserError

Kind = TypeVar("Kind")


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


@overload
def read_json(file: Path, *, finite: bool = ...) -> Any: ...


@overload
def read_json(file: Path, kind: type[Kind], finite: bool = ...) -> Kind: ...


def read_json(file: Path, kind: type = object, finite: bool = True) -> Any:
    """What a JSON file holds, if it is of that kind; refuses numbers such as 1e999, which no setting may have.

    Args:
        finite: False for scores, of which one may be NaN.
    """
    with _readable(file, "JSON"):
        return parse_json(file.read_text(encoding="utf-8"), kind, finite)


def parse_json(text: str, kind: type[Kind], finite: bool = True) -> Kind:
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
        raise ValueError(f"it holds a {type(found).__name__}, not a {kind.__name__}")
    return found


def read_toml(file: Path) -> dict[str, Any]:
    """What a TOML file holds; refused like JSON."""
    with _readable(file, "TOML"):
        try:
            return tomllib.loads(file.read_text(encoding="utf-8"), parse_float=_finite)
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
    except ValueError as error:
        raise UserError(f"{file} is not readable {what} ({error}); bring back the file as it was written") from error


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
