"""Every command has a Python function with the same names and defaults, and vice versa."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import nearkin
from nearkin.cli import app
from nearkin.cli.options import TrainingOptions

COMMANDS: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
VERBS: dict[str, Callable[..., Any]] = {
    "compare": nearkin.compare,
    "demo": nearkin.demo,
    "embed": nearkin.embed,
    "evaluate": nearkin.evaluate,
    "export": nearkin.export,
    "index": nearkin.index,
    "match": nearkin.Gallery.match,
    "remove": nearkin.Gallery.remove,
    "report": nearkin.report,
    "reproduce": nearkin.reproduce,
    "resume": nearkin.resume,
    "search": nearkin.Gallery.search,
    "serve": nearkin.Gallery.serve,
    "train": nearkin.train,
}
LISTS = {"datasets", "methods", "recipes"}  # lists of names: packages and functions in Python
# Options only of the terminal; settings are keyword arguments in Python.
TERMINAL = {"as_json", "figure", "listing", "settings", "gallery", *TrainingOptions.__annotations__}
SETTINGS = {"keep", "seed", "validation"}
# Python objects, which no command line can hold.
OBJECTS = {"backbone", "callbacks", "is_gallery", "is_query", "labels", "loss", "method", "data"}


def plain(value: Any) -> Any:
    """A default in the same form for commands and functions."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return None if value is inspect.Parameter.empty else value


def test_commands_and_functions_are_the_same() -> None:
    assert COMMANDS.keys() == VERBS.keys() | LISTS
    public = {name for name in nearkin.__all__ if inspect.isfunction(getattr(nearkin, name))}
    assert public - {"cluster", "load", "load_dataset"} <= VERBS.keys()


@pytest.mark.parametrize("name", VERBS)
def test_a_command_and_its_function_have_the_same_arguments(name: str) -> None:
    options = {option.name: option.default for option in COMMANDS[name].params if option.name != "help"}
    arguments = {
        argument.name: argument.default
        for argument in inspect.signature(VERBS[name]).parameters.values()
        if argument.name != "self" and argument.kind is not argument.VAR_KEYWORD
    }
    by_name = SETTINGS if name == "train" else set()
    if "gallery" in options:  # the command also opens the gallery
        opening = inspect.signature(nearkin.Gallery.open).parameters
        arguments |= {option: opening[option].default for option in options.keys() & opening.keys()}
    assert options.keys() - TERMINAL - by_name <= arguments.keys()
    assert arguments.keys() - OBJECTS <= options.keys()
    for shared in options.keys() & arguments.keys():
        assert plain(options[shared]) == plain(arguments[shared]), shared
