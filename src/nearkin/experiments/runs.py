"""One run of an experiment: trains, resumes or reuses it, and notes its training time and provenance."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

from nearkin.errors import Interrupted, ResourceError, UserError
from nearkin.experiments.provenance import provenance
from nearkin.files import read_json, write_json
from nearkin.training import Run, Settings, resume, train
from nearkin.training.objects import Objects, copied

SECONDS, MADE = "seconds.json", "made.json"


@dataclass(frozen=True)
class Task:
    """A run to train in ``folder``; with ``tested=False`` it never uses the test split.

    It trains copies of its ``objects``. A task with a user's objects cannot go to another process.
    """

    name: str
    settings: Settings
    folder: Path
    tested: bool = True
    objects: Objects = field(default_factory=Objects)

    @property
    def finished(self) -> bool:
        return _finished(Run(self.folder), self.settings)


def attempt(task: Task) -> str | None:
    """Trains a task's run and notes the time it took; returns the reason if settings or data do not work."""
    try:
        with _timed(Run(task.folder), task.objects.get("trial")):
            _note_provenance(run_or_resume(task.settings, task.folder, task.tested, **copied(task.objects)))
    except (Interrupted, ResourceError):  # not the task's fault: it may work another time
        raise
    except UserError as error:
        return str(error)
    except Exception as error:
        raise RuntimeError(f"{task.name} ended with {type(error).__name__}: {error}") from error
    return None


def run_or_resume(settings: Settings, folder: str | Path, tested: bool = True, **objects: Unpack[Objects]) -> Run:
    """Trains a run or resumes it; returns a finished run unchanged, and continues it if it now stops later.

    >>> run_or_resume(Settings.read("config.toml"), "runs/one-of-many")  # doctest: +SKIP
    """
    run = Run(folder)
    if _finished(run, settings):
        return run
    if run.checkpoint_file.is_file() or run.model_folder.is_dir():
        _note_provenance(run)
        return resume(folder, tested, stop_after=settings.training.stop_after, **objects)
    objects["callbacks"] = [_note_provenance, *objects.get("callbacks", ())]
    return train(settings, folder, tested, **objects)


def _finished(run: Run, settings: Settings) -> bool:
    return run.scores_file.is_file() and run.settings().training.stop_after == settings.training.stop_after


def cached(folder: Path, key: object, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Computes scores once and then reads them from a file in the folder; ``repr(key)`` identifies them.

    >>> cached(Path("runs/x"), ("recall@1", "test"), lambda: {"recall@1": 0.5})  # doctest: +SKIP
    {'recall@1': 0.5}
    """
    file = folder / f"measured-{hashlib.sha256(repr(key).encode()).hexdigest()[:8]}.json"
    if not file.is_file():
        write_json(file, measure())
    return read_json(file, dict, finite=False)


def full_tables(settings: Settings) -> dict[str, dict[str, Any]]:
    """The tables of a ``config.toml`` with all settings of the method, to tell whether two runs are the same.

    >>> from nearkin.training import DataSettings
    >>> full_tables(Settings(DataSettings("glyphs"), method="triplet"))["method"]
    {'name': 'triplet', 'margin': 0.2, 'per_class': 4}
    """
    return settings.to_tables() | {"method": {"name": settings.method, **settings.make_method().settings()}}


def note_provenance(folder: Path, device: str) -> None:
    """Writes the provenance of the results in a folder."""
    write_json(folder / MADE, provenance(device))


def _note_provenance(run: Run, *_: object) -> None:
    """Called after every epoch as well: a run that is killed as soon as it has scores counts as finished."""
    note_provenance(run.folder, run.settings().training.device)


def provenance_of(runs: Iterable[Run]) -> dict[str, str]:
    """The provenance of the runs; different values are joined with commas."""
    files = [run.folder / MADE for run in runs]
    each: list[dict[str, str]] = [read_json(file, dict) if file.is_file() else {} for file in files]
    names = dict.fromkeys(name for one in each for name in one)
    return {name: ", ".join(sorted({one.get(name, "unknown") for one in each})) for name in names}


def seconds_of(run: Run) -> float:
    """The training time of a run, including resumed parts and a trial it took over; 0 if unknown."""
    file = run.folder / SECONDS
    return read_json(file, float) if file.is_file() else 0.0


@contextmanager
def _timed(run: Run, trial: Run | None) -> Iterator[None]:
    started, before = time.monotonic(), seconds_of(run) or (seconds_of(trial) if trial else 0.0)
    try:
        yield
    finally:
        if run.config_file.is_file():
            write_json(run.folder / SECONDS, round(before + time.monotonic() - started, 1))
