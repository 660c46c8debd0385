"""Checks settings given by name, in files, on the command line or in calls, against the class they are for."""

from __future__ import annotations

import inspect
import math
import tomllib
import types
import typing
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np

from nearkin.errors import UserError, unknown_name
from nearkin.names import check_names

Built = TypeVar("Built")

_IN_WORDS = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}


def checked_fields(kind: type, values: dict[str, Any], where: str) -> dict[str, Any]:
    """Returns the values; raises if a name is unknown or a value does not have its field's type.

    Integers are converted to floats where needed. Errors start with `where`, such as a file name, unless it is empty.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Sides:
    ...     width: float
    >>> checked_fields(Sides, {"width": 2}, "sides")
    {'width': 2.0}
    """
    hints, prefix = typing.get_type_hints(kind), f"{where}: " if where else ""
    known = [field.name for field in fields(kind)]
    for name in values:
        if name not in known:
            raise unknown_name(f"{prefix}setting", name, known)
    return {name: _typed(value, hints[name], prefix + name) for name, value in values.items()}


def parse_assignment(text: str) -> tuple[str, Any]:
    """Parses ``momentum=0.95`` to ("momentum", 0.95); a value that is not valid TOML is a string.

    >>> parse_assignment("split=classes")
    ('split', 'classes')
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"'{text}' is not a setting; write NAME=VALUE, for example momentum=0.95")
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        return name.strip(), value.strip()


def build(kind: type[Built], settings: dict[str, Any], where: str) -> Built:
    """Makes an instance of a class from settings, which its constructor or those of its base classes take by name.

    >>> class Sides:
    ...     def __init__(self, width: float, height: float = 1.0) -> None:
    ...         self.area = width * height
    >>> build(Sides, {"width": 2.0}, "sides").area
    2.0
    >>> build(Sides, {"height": 2.0}, "sides")
    Traceback (most recent call last):
    nearkin.errors.UserError: sides needs width
    """
    known = arguments_of(kind)
    for name in settings:
        if name not in known:
            raise unknown_name(f"{where}: setting", name, known)
    missing = [name for name, needed in known.items() if needed and name not in settings]
    if missing:
        raise UserError(f"{where} needs {' and '.join(missing)}")
    hints = typing.get_type_hints(kind.__init__)
    settings = {
        name: _typed(value, hints[name], f"{where}: {name}") if hints.get(name) in _IN_WORDS else value
        for name, value in settings.items()
    }
    try:
        return kind(**settings)
    except UserError:
        raise
    except (TypeError, ValueError, AssertionError) as error:
        raise UserError(f"{where} cannot be made from {settings}: {error}") from error


def arguments_of(kind: type) -> dict[str, bool]:
    """Returns the constructor's arguments and whether each is required, including those passed on to base classes."""
    found: dict[str, bool] = {}
    passes_all = True  # also arguments without a default, through *args
    for each in kind.__mro__:
        if "__init__" in vars(each):
            parameters = list(inspect.signature(each.__init__).parameters.values())[1:]  # type: ignore[misc]
            named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
            found |= {
                p.name: p.default is p.empty
                for p in named
                if p.name not in found and (passes_all or p.default is not p.empty)
            }
            passes_all &= any(p.kind is p.VAR_POSITIONAL for p in parameters)
            if not any(p.kind is p.VAR_KEYWORD for p in parameters):
                break
    return found


def _typed(value: Any, wanted: type, what: str) -> Any:
    if isinstance(value, np.generic):  # parameter grids and counts often come from NumPy
        value = value.item()
    if typing.get_origin(wanted) is types.UnionType:  # optional: X | None
        if value is None:
            return None
        wanted = next(each for each in typing.get_args(wanted) if each is not type(None))
    if wanted is float and type(value) is int:
        return float(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{what} must be a finite number, got {value}")
    if type(value) is not wanted:
        raise UserError(f"{what} must be {_IN_WORDS[wanted]}, got {value!r:.200}")
    if isinstance(value, str):
        check_names([value], what)
    return value
