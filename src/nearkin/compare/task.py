"""One run of a comparison: begun, continued, or found finished."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nearkin.errors import Interrupted, OutOfRoom, UserError
from nearkin.files import read_json, write_json
from nearkin.report.provenance import provenance
from nearkin.training import Run, Settings
from nearkin.training.carry_out import carry_out

SECONDS, MADE = "seconds.json", "made.json"


@dataclass(frozen=True)
class Task:
    """A run to carry out in ``folder``; without ``tested`` it never looks at the test part."""

    name: str
    settings: Settings
    folder: Path
    tested: bool = True

    @property
    def finished(self) -> bool:
        return Run(self.folder).scores_file.is_file()


def attempt(task: Task) -> str | None:
    """Carries a task out and notes what it took; returns why, where it was refused."""
    try:
        with _timed(Run(task.folder)):
            carry_out(task.settings, task.folder, task.tested)
        write_json(task.folder / MADE, provenance(task.settings.training.device))
    except (Interrupted, OutOfRoom):  # no verdict on what was asked: the same may work another time
        raise
    except UserError as error:
        return str(error)
    except Exception as error:
        raise RuntimeError(f"{task.name} ended with {type(error).__name__}: {error}") from error
    return None


def seconds_of(run: Run) -> float:
    """How long the run was worked on, all its parts together; 0 where nobody noted it."""
    file = run.folder / SECONDS
    return float(read_json(file)) if file.is_file() else 0.0


def made(runs: Iterable[Run]) -> dict[str, str]:
    """When, on what and with which nearkin the runs were finished; what differs between them stands side by side."""
    files = [run.folder / MADE for run in runs]
    each: list[dict[str, str]] = [read_json(file) if file.is_file() else {} for file in files]
    names = dict.fromkeys(name for one in each for name in one)
    return {name: ", ".join(sorted({one.get(name, "unknown") for one in each})) for name in names}


@contextmanager
def _timed(run: Run) -> Iterator[None]:
    started = time.monotonic()
    try:
        yield
    finally:
        if run.config_file.is_file():
            write_json(run.folder / SECONDS, round(seconds_of(run) + time.monotonic() - started, 1))
