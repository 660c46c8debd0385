"""Progress bars, with elapsed and remaining time.

A terminal shows a bar, a notebook a bar in the cell's output. Elsewhere (files, pipes, CI), a long task prints a line
every 30 seconds.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from html import escape
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

T = TypeVar("T")
Advance = Callable[..., None]

LINE_EVERY = 30.0  # seconds between lines, if there is no bar
REDRAW_EVERY = 0.5  # seconds between updates of a notebook's bar


def track(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Iterates over ``items`` with a progress bar on standard error.

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
    """Yields a function that moves the bar: ``advance(steps=1, note="loss 0.31")``."""
    with _display() as display:
        task = Task(what, total, done, done)
        display.begin(task)

        def advance(steps: int = 1, note: str = "") -> None:
            task.done += steps
            task.note = note
            display.update(task)

        try:
            yield advance
        finally:
            display.end(task)


@contextmanager
def quiet() -> Iterator[None]:
    """Shows no bars in this block, and no messages except warnings (see `nearkin.messages`)."""
    _open.append(Display())  # bars in this block use this display, which shows nothing
    try:
        yield
    finally:
        _open.pop()


def is_quiet() -> bool:
    """Whether this code runs in a `quiet` block."""
    return bool(_open) and type(_open[-1]) is Display


def is_main_process() -> bool:
    """Whether this process prints: under torchrun, only the one with rank 0 does."""
    return os.environ.get("RANK", "0") == "0"


@dataclass(eq=False)
class Task:
    """One bar: ``done`` of ``total`` steps, started at step ``first``."""

    what: str
    total: int | None
    first: int
    done: int
    note: str = ""
    started: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        """
        >>> print(Task("training", 1000, 0, 250, "loss 0.31", started=time.monotonic() - 60))
        training 250/1,000, 0:01:00, 0:03:00 left, loss 0.31
        """
        seconds = time.monotonic() - self.started
        of = "" if self.total is None else f"/{self.total:,}"
        parts = [f"{self.what} {self.done:,}{of}", _clock(seconds)]
        if self.total is not None and self.done > self.first:
            parts.append(f"{_clock(seconds * (self.total - self.done) / (self.done - self.first))} left")
        return ", ".join([*parts, self.note] if self.note else parts)


class Display:
    """Shows nested bars. This base class shows nothing."""

    def begin(self, task: Task) -> None: ...

    def update(self, task: Task) -> None: ...

    def end(self, task: Task) -> None: ...

    def close(self) -> None: ...


class Terminal(Display):
    """Shows moving bars on standard error."""

    def __init__(self, console: Console) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("· left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self.progress = Progress(*columns, console=console, transient=True)
        self.shown: dict[Task, TaskID] = {}
        self.progress.start()

    def begin(self, task: Task) -> None:
        self.shown[task] = self.progress.add_task(task.what, total=task.total, completed=task.done, note=task.note)

    def update(self, task: Task) -> None:
        self.progress.update(self.shown[task], completed=task.done, note=task.note)

    def end(self, task: Task) -> None:
        self.progress.remove_task(self.shown.pop(task))

    def close(self) -> None:
        self.progress.stop()


class Lines(Display):
    """Prints a line about all bars at intervals, for output that cannot be overwritten."""

    every = LINE_EVERY

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.last = time.monotonic()

    def begin(self, task: Task) -> None:
        self.tasks.append(task)

    def update(self, task: Task) -> None:  # noqa: ARG002
        if time.monotonic() - self.last >= self.every:
            self.show()
            self.last = time.monotonic()

    def end(self, task: Task) -> None:
        self.tasks.remove(task)

    def show(self) -> None:
        print(" | ".join(map(str, self.tasks)), file=sys.stderr, flush=True)


class Notebook(Lines):
    """Shows all bars in one output area of a notebook's cell and clears it when the work is done."""

    every = REDRAW_EVERY
    last_cell: tuple[int, str] = (-1, "")  # number of the last cell with bars, and the display id of its output area

    def __init__(self) -> None:
        super().__init__()
        self.drawn = False

    def show(self) -> None:
        self.draw("".join(map(_html, self.tasks)), " | ".join(map(str, self.tasks)))

    def close(self) -> None:
        if self.drawn:
            self.draw("", "")

    def draw(self, html: str, text: str) -> None:
        from IPython import get_ipython
        from IPython.display import display, update_display

        self.drawn = True
        content = {"text/html": html, "text/plain": text}
        cell = get_ipython().execution_count
        last, display_id = Notebook.last_cell
        if last == cell:
            update_display(content, display_id=display_id, raw=True)
        else:
            Notebook.last_cell = cell, f"nearkin-{os.urandom(8).hex()}"
            display(content, display_id=Notebook.last_cell[1], raw=True)


_open: list[Display] = []  # nested bars share one display


@contextmanager
def _display() -> Iterator[Display]:
    if _open:
        yield _open[-1]
        return
    display = _new_display()
    _open.append(display)
    try:
        yield display
    finally:
        _open.pop()
        display.close()


def _new_display() -> Display:
    from rich.console import Console

    console = Console(stderr=True)
    if not is_main_process():
        return Display()
    if console.is_jupyter:
        return Notebook()
    return Terminal(console) if console.is_terminal else Lines()


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _html(task: Task) -> str:
    known = "" if task.total is None else f' value="{task.done}" max="{task.total}"'
    return f"<div><progress{known}></progress> {escape(str(task))}</div>"
