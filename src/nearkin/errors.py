"""The one exception for mistakes a user can mend: one sentence that says what was wrong and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake in the input; the commands print it as one sentence, without a traceback."""


class OutOfRoom(UserError):
    """No space on the disk or the device: nothing is wrong with what was asked, and later it may work."""


class Interrupted(UserError):
    """The user asked to stop; everything needed to go on was saved."""


def unknown_name(what: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that is not known, with the nearest known one.

    >>> str(unknown_name("method", "ranks", ["rank", "magnet"]))
    "method 'ranks' is unknown; did you mean 'rank'? Known: magnet, rank"
    """
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1) or difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else "."
    return UserError(f"{what} '{name}' is unknown{hint} Known: {', '.join(known)}")
