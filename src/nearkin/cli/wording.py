"""Messages of the library, which name a fix as Python does, with the fix as an option of the command."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection

CALL = re.compile(r"(nearkin\.[\w.]+\([^)]*\)*|`[^`]*`)")  # Python code and commands are quoted as they are
KEYWORD = re.compile(r"\b([a-z_]+)=(\"[^\"]*\"|\.\.\.|[\w+-]+(?:\.\w+)*)")


def as_options(message: str, options: Collection[str], settings: Collection[str]) -> str:
    """The message with ``name=value`` as ``--name value``, or as ``--set name=value`` for a setting without an option.

    >>> as_options('use normalize="always" or dim=64', options={"dim"}, settings={"dim", "normalize"})
    'use --set normalize=always or --dim 64'
    """

    def worded(found: re.Match[str]) -> str:
        name, value = found[1], found[2].strip('"')
        if name in options:
            return f"--{name.replace('_', '-')} {value}"
        return f"--set {name}={value}" if name in settings else found[0]

    pieces = CALL.split(message)
    return "".join(piece if CALL.fullmatch(piece) else KEYWORD.sub(worded, piece) for piece in pieces)


def worded_for(message: str, arguments: list[str]) -> str:
    """The message in the words of the command that was called with these arguments."""
    if "=" not in message:
        return message
    from dataclasses import fields

    from typer.main import get_command

    from nearkin.cli.app import app
    from nearkin.methods import known_methods
    from nearkin.training.settings import DataSettings, ModelSettings, TrainingSettings

    commands = getattr(get_command(app), "commands", {})
    command = next((commands[argument] for argument in arguments if argument in commands), None)
    options = {each.name for each in command.params if each.param_type_name == "option"} if command else set()
    kinds = (DataSettings, ModelSettings, TrainingSettings, *known_methods())
    return as_options(message, options, {field.name for kind in kinds for field in fields(kind)})


class OptionFormatter(logging.Formatter):
    """Log messages in the words of the command."""

    def __init__(self, arguments: list[str]) -> None:
        super().__init__("%(message)s")
        self.arguments = arguments

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return worded_for(text, self.arguments) if record.levelno >= logging.WARNING else text
