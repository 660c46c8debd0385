"""Settings that come from files and command lines, checked against the fields of the dataclass they are for."""

from __future__ import annotations

import math
import typing
from dataclasses import fields
from typing import Any

from nearkin.errors import UserError, unknown_name

_IN_WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def checked_fields(kind: type, values: dict[str, Any], where: str) -> dict[str, Any]:
    """The values, each known and of its field's type; whole numbers pass as numbers.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Sides:
    ...     width: float
    >>> checked_fields(Sides, {"width": 2}, "sides")
    {'width': 2.0}
    """
    hints = typing.get_type_hints(kind)
    known = [field.name for field in fields(kind)]
    for name in values:
        if name not in known:
            raise unknown_name(f"{where}: setting", name, known)
    return {name: _typed(value, hints[name], f"{where}: {name}") for name, value in values.items()}


def _typed(value: Any, wanted: type, what: str) -> Any:
    if wanted is float and type(value) is int:
        return float(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{what} must be a finite number, not {value}")
    if type(value) is not wanted:
        raise UserError(f"{what} must be {_IN_WORDS[wanted]}, not {value!r}")
    return value
