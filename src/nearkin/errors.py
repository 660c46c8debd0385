"""Exceptions for mistakes that a user can fix: one sentence with the problem and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake in the input; commands print it as one sentence, without a traceback."""


class ResourceError(UserError):
    """Disk or memory is full, or a file is missing or cannot be written: the same request may succeed later."""


class Interrupted(UserError):
    """The user asked to stop; everything needed to resume has been saved."""


def unknown_name(what: str, name: str, known: Iterable[str]) -> UserError:
    """The error for an unknown name; suggests the closest known one.

    >>> str(unknown_name("method", "ranks", ["rank", "magnet"]))
    "method 'ranks' is unknown; did you mean 'rank'? Known: magnet, rank"
    """
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1) or difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else "."
    return UserError(f"{what} '{name}' is unknown{hint} Known: {', '.join(known)}")
