"""Rewrites messages of the library for the command line: a fix in Python syntax becomes an option."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

CALL = re.compile(r"(nearkin\.[\w.]+\([^)]*\)*|`[^`]*`|(?<!\w)'[^']*'(?!\w))")  # code and quotations stay as they are
KEYWORD = re.compile(r"(?<![\w,:])([a-z_]+)=(\"[^\"]*\"|\.\.\.|[\w+-]+(?:\.\w+)*)")
NAME = re.compile(r"(?:^[a-z_]+(?= (?:must|needs) )|(?<=leave out )[a-z_]+)\b")


@dataclass(frozen=True)
class Spelling:
    """How an option is written. A flag has no value, and may have a second spelling for False."""

    name: str
    is_flag: bool = False
    negative: str = ""

    def with_value(self, value: str) -> str:
        if self.is_flag:
            return self.negative or f"no {self.name}" if value == "False" else self.name
        return f"{self.name} {value}"


def as_options(message: str, options: Mapping[str, Spelling], settings: Collection[str]) -> str:
    """Turns ``name=value`` into ``--name value``, or into ``--set name=value`` for a setting without an option.

    A name without a value becomes an option at the start of the message and after "leave out".

    >>> options = {"dim": Spelling("--dim"), "k": Spelling("-k"), "prune": Spelling("--prune", is_flag=True)}
    >>> as_options('use normalize="always" or dim=64', options, settings={"dim", "normalize"})
    'use --set normalize=always or --dim 64'
    >>> as_options("use k=3 and prune=True", options, settings={})
    'use -k 3 and --prune'
    >>> as_options("dim must be an integer >= 0, got -2", options, settings={"dim"})
    '--dim must be an integer >= 0, got -2'
    >>> as_options("this model has a head; leave out dim", options, settings={"dim"})
    'this model has a head; leave out --dim'
    >>> as_options("use dim=64, and leave it out of 'rank:dim=32'", options, settings={"dim"})
    "use --dim 64, and leave it out of 'rank:dim=32'"
    >>> as_options("rank,dim=32 is left out", options, settings={"dim"})  # the name of a row
    'rank,dim=32 is left out'
    """

    def worded(found: re.Match[str]) -> str:
        name, value = found[1], found[2].strip('"')
        if name in options:
            return options[name].with_value(value)
        return f"--set {name}={value}" if name in settings else found[0]

    message = NAME.sub(lambda found: options[found[0]].name if found[0] in options else found[0], message)
    pieces = CALL.split(message)
    return "".join(piece if CALL.fullmatch(piece) else KEYWORD.sub(worded, piece) for piece in pieces)


def worded_for(message: str, arguments: list[str]) -> str:
    """Rewrites a message for the command in these arguments."""
    if not KEYWORD.search(message) and not NAME.search(message):
        return message
    from dataclasses import fields

    from typer.main import get_command

    from nearkin.cli.app import app
    from nearkin.methods import known_methods
    from nearkin.training.settings import DataSettings, ModelSettings, TrainingSettings

    commands = getattr(get_command(app), "commands", {})
    command = next((commands[argument] for argument in arguments if argument in commands), None)
    options = [each for each in command.params if each.param_type_name == "option"] if command else []
    spelled = {each.name: _spelling(each) for each in options}
    kinds = (DataSettings, ModelSettings, TrainingSettings, *known_methods())
    return as_options(message, spelled, {field.name for kind in kinds for field in fields(kind)})


def _spelling(option: Any) -> Spelling:
    return Spelling(max(option.opts, key=len), option.is_flag, next(iter(option.secondary_opts), ""))


class OptionFormatter(logging.Formatter):
    """Formats warnings and errors with `worded_for`."""

    def __init__(self, arguments: list[str]) -> None:
        super().__init__("%(message)s")
        self.arguments = arguments

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return worded_for(text, self.arguments) if record.levelno >= logging.WARNING else text
