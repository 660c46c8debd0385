"""One run of a comparison: begun, continued, or found finished."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nearkin.errors import Interrupted, UserError
from nearkin.files import write_json
from nearkin.training import Run, Settings
from nearkin.training.carry_out import carry_out


@dataclass(frozen=True)
class Task:
    """A run to carry out in ``folder``; without ``tested`` it never looks at the test part."""

    name: str
    settings: Settings
    folder: Path
    tested: bool = True

    @property
    def finished(self) -> bool:
        return Run(self.folder).scores.is_file()


def attempt(task: Task) -> str | None:
    """Carries a task out, unless its folder says that it is finished; returns why, where it was refused."""
    try:
        with _timed(Run(task.folder)):
            carry_out(task.settings, task.folder, task.tested)
    except Interrupted:
        raise
    except UserError as error:
        return str(error)
    except Exception as error:
        raise RuntimeError(f"{task.name} ended with {type(error).__name__}: {error}") from error
    return None


def seconds_of(run: Run) -> float:
    """How long the run was worked on, all its parts together; 0 where nobody noted it."""
    file = run.folder / "seconds.json"
    return float(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else 0.0


@contextmanager
def _timed(run: Run) -> Iterator[None]:
    finished, started = run.scores.is_file(), time.monotonic()
    try:
        yield
    finally:
        if run.config.is_file() and not finished:
            write_json(run.folder / "seconds.json", round(seconds_of(run) + time.monotonic() - started, 1))
