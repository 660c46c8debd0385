"""A run is a folder: settings, metrics, checkpoints, the model. Nothing in it is ever half written."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nearkin.errors import UserError
from nearkin.files import cannot_write, read_json, write_json, write_text
from nearkin.methods import Method
from nearkin.training.settings import Settings


class Run:
    """The files of one run.

    >>> Run("runs/x").model
    PosixPath('runs/x/model')
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = folder = Path(folder)
        self.config = folder / "config.toml"
        self.metrics = folder / "metrics.jsonl"
        self.checkpoint = folder / "checkpoints" / "last.pt"
        self.model = folder / "model"
        self.scores = folder / "scores.json"
        self.data = folder / "data.sha256"
        self.readout = folder / "readout.json"

    @classmethod
    def create(cls, folder: str | Path, settings: Settings, data_digest: str) -> Run:
        """A new run in an empty or new folder."""
        cls.check_free(folder)
        run = cls(folder)
        run.metrics.unlink(missing_ok=True)
        write_text(run.data, data_digest)
        write_text(run.config, settings.to_toml())
        return run

    @staticmethod
    def check_free(folder: str | Path) -> None:
        """Refuses a folder with anything in it, unless it is a run that ended before it had saved any progress."""
        run = Run(folder)
        if not run.folder.exists() or (run.folder.is_dir() and not any(run.folder.iterdir())):
            return
        if not run.data.is_file():
            raise UserError(f"{folder} exists already and is no run; choose another --out")
        if run.checkpoint.is_file() or run.model.is_dir():
            raise UserError(f"{folder} exists already; continue it with --resume {folder}, or choose another --out")

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        run = cls(folder)
        if not run.config.is_file():
            raise UserError(f"{folder} is no run (config.toml is missing); give the folder that `nearkin train` wrote")
        return run

    def settings(self) -> Settings:
        return Settings.read(self.config)

    def method(self) -> Method:
        """The run's method with all that its read-out needs besides the model."""
        method = self.settings().make_method()
        method.buffers = self.read_buffers()
        return method

    @property
    def resume_command(self) -> str:
        return f"nearkin train --resume {shlex.quote(str(self.folder))}"

    def same_data(self, digest: str) -> bool:
        """Whether items, classes and split are what they were when the run began."""
        return not self.data.is_file() or self.data.read_text(encoding="utf-8") == digest

    def check_data(self, digest: str) -> None:
        if not self.same_data(digest):
            raise UserError(
                f"the data of {self.folder} are not what they were when it began (items, classes or split differ); "
                "bring them back, or start a new run"
            )

    def log(self, record: dict[str, Any]) -> None:
        """Appends one line to the metrics."""
        try:
            with self.metrics.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(record) + "\n")
        except OSError as error:
            raise cannot_write(self.metrics, error) from error

    def read_metrics(self) -> list[dict[str, Any]]:
        """All records; a last line that a killed process left unfinished is passed over."""
        if not self.metrics.is_file():
            return []
        records = []
        for line in self.metrics.read_text(encoding="utf-8").splitlines():
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:
                continue
        return records

    def evaluations(self) -> list[dict[str, Any]]:
        """The records of what was measured on the way, after epochs."""
        return [record for record in self.read_metrics() if record["kind"] == "evaluation"]

    def keep_records(self, count: int) -> None:
        """Forgets what was logged after the first ``count`` records: a resumed run will say it again."""
        kept = self.read_metrics()[:count]
        write_text(self.metrics, "".join(json.dumps(record) + "\n" for record in kept))

    def write_buffers(self, values: Mapping[str, float]) -> None:
        """Keeps what the method's read-out needs besides the model, if anything."""
        if values:
            write_json(self.readout, dict(values))

    def read_buffers(self) -> dict[str, float]:
        return read_json(self.readout) if self.readout.is_file() else {}

    def write_scores(self, scores: dict[str, Any]) -> None:
        write_json(self.scores, scores)

    def read_scores(self) -> dict[str, Any]:
        """What training wrote at its end: by what the model was ``chosen``, the test part ``before`` and ``after``."""
        try:
            return dict(read_json(self.scores))
        except (TypeError, ValueError) as error:
            raise UserError(
                f"{self.scores} is damaged ({error}); delete it and measure again with: {self.resume_command}"
            ) from error


def next_folder(parent: Path, name: str) -> Path:
    """The first of ``name``, ``name-2``, ``name-3``, … that is not taken."""
    candidates = [parent / name, *(parent / f"{name}-{number}" for number in range(2, 10_000))]
    return next(folder for folder in candidates if not folder.exists())
