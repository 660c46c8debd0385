"""The one progress bar: what is being done, how far it is, and how long it will still take."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")
Advance = Callable[..., None]

_open: list[Progress] = []  # bars inside bars share one live display


def track(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Iterates over ``items`` with a progress bar on standard error (silent where nobody looks).

    >>> [x * x for x in track([1, 2, 3], "squaring")]
    [1, 4, 9]
    """
    if total is None and isinstance(items, Sized):
        total = len(items)
    with bar(what, total) as advance:
        for item in items:
            yield item
            advance()


@contextmanager
def bar(what: str, total: int | None, done: int = 0) -> Iterator[Advance]:
    """A bar moved by hand: ``advance(steps=1, note="loss 0.31")``."""
    with _display() as progress:
        task = progress.add_task(what, total=total, completed=done, note="")

        def advance(steps: int = 1, note: str = "") -> None:
            progress.update(task, advance=steps, note=note)

        try:
            yield advance
        finally:
            progress.remove_task(task)


@contextmanager
def quiet() -> Iterator[None]:
    """No bars in this block."""
    from rich.progress import Progress

    _open.append(Progress(disable=True))  # all bars inside join this one
    try:
        yield
    finally:
        _open.pop()


def speaks() -> bool:
    """Whether this process talks to the user: of several that torchrun started, only the first does."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def _display() -> Iterator[Progress]:
    if _open:
        yield _open[-1]
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("· left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not (console.is_terminal and speaks())
    ) as progress:
        _open.append(progress)
        try:
            yield progress
        finally:
            _open.pop()
