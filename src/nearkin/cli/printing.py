"""Printing. Names of files and classes may come from anyone; their escape sequences must not reach the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from nearkin.names import printable


class PlainConsole(Console):
    """A console that prints text literally: brackets are not markup, and escape sequences are escaped."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def show(thing: RenderableType, **options: Any) -> None:
    """Prints a table, or any other rich renderable."""
    PlainConsole().print(thing, **options)


def say(text: object, err: bool = False) -> None:
    """Prints text without wrapping its lines."""
    typer.echo(printable(str(text)), err=err)
