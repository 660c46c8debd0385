"""A run: settings, metrics, checkpoints and the model, in a folder with atomic writes, or in memory."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from copy import deepcopy
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from typing import Any

from torch import Tensor, nn, tensor

from nearkin.data import Dataset
from nearkin.errors import Interrupted, UserError
from nearkin.files import UNFINISHED, cannot_write, check_writable, read_json, read_text, sweep, write_json, write_text
from nearkin.methods import Method
from nearkin.models import Embedder, EmbeddingModel
from nearkin.models.saved import read_tensors, restore_weights, save_model, write_tensors
from nearkin.training.checkpoint import Position, Stateful, save_checkpoint
from nearkin.training.records import as_line, read_records
from nearkin.training.settings import Settings

# The keys and types that all readers of scores.json rely on.
SCORES = {"chosen": str, "outcome": str, "verdict": str, "best_epoch": int} | dict.fromkeys(
    ("backbone", "before", "after"), dict
)


class Run:
    """A training run and its folder: settings, metrics, checkpoints, model and scores.

    Attributes:
        folder: the run folder.
        backbone: the user's own module, if the run was trained with one in this process.
        dataset: the user's own data, likewise, if they were an object.

    >>> Run("runs/x").model_folder
    PosixPath('runs/x/model')
    """

    def __init__(self, folder: str | Path) -> None:
        self.move_to(folder)
        self.backbone: nn.Module | None = None
        self.dataset: Dataset | None = None

    def move_to(self, folder: str | Path) -> None:
        self.folder = folder = Path(folder)
        self.config_file = folder / "config.toml"
        self.metrics_file = folder / "metrics.jsonl"
        self.checkpoint_file = folder / "checkpoints" / "last.pt"
        self.model_folder = folder / "model"
        self.scores_file = folder / "scores.json"
        self.digest_file = folder / "data.sha256"
        self.buffers_file = folder / "readout.safetensors"

    def __repr__(self) -> str:
        verdict = self.scores["verdict"].partition(". ")[0] if self.scores_file.is_file() else "not finished"
        return f"<Run {self.folder}: {verdict}>"

    def create(self, settings: Settings, data_digest: str) -> None:
        """Starts the run in an empty or new folder."""
        self.check_free()
        self.sweep()
        self.metrics_file.unlink(missing_ok=True)
        write_text(self.digest_file, data_digest)
        write_text(self.config_file, settings.to_toml())

    def check_free(self) -> None:
        """Raises if the folder is not empty, except for a run that stopped before its first checkpoint."""
        check_writable(self.folder)
        if not self.folder.exists() or self._barely_begun():
            return
        if not self.digest_file.is_file():
            raise UserError(f"{self.folder} already exists and is not a run; choose another folder: out=...")
        if self.checkpoint_file.is_file() or self.model_folder.is_dir():
            raise UserError(
                f"{self.folder} already exists; continue it with `{self.resume_command}`, "
                "or choose another folder: out=..."
            )

    def _barely_begun(self) -> bool:
        """Whether the folder exists and is empty, or has only what a run writes before its settings."""
        if not self.folder.is_dir():
            return False
        names = {path.name for path in self.folder.iterdir()}
        return {name for name in names if not name.startswith(UNFINISHED)} <= {self.digest_file.name}

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        run = cls(folder)
        if run._barely_begun():
            raise UserError(f"{folder} has no checkpoint yet; train again with the same folder")
        if not run.folder.exists():
            raise UserError(f"{folder} does not exist; use a run folder, written by `nearkin train`")
        if not run.config_file.is_file():
            raise UserError(f"{folder} is not a run (config.toml is missing); use a folder written by `nearkin train`")
        run.sweep()
        return run

    def sweep(self) -> None:
        """Deletes unfinished files of a killed process."""
        for folder in (self.folder, self.model_folder, self.checkpoint_file.parent):
            sweep(folder)

    @cached_property
    def model(self) -> Embedder:
        """The model kept so far, ready to ``encode``; it shares no memory with the one in training."""
        return Embedder.load(self.folder, deepcopy(self.backbone))

    def change_settings(self, settings: Settings) -> None:
        """Deletes the scores of a run that continues, and writes its new settings."""
        self.scores_file.unlink(missing_ok=True)  # first: new settings next to old scores would look finished
        write_text(self.config_file, settings.to_toml())

    def settings(self) -> Settings:
        return Settings.read(self.config_file)

    def method(self) -> Method:
        """The run's method, with what its read-out needs besides the model."""
        method = self.settings().make_method()
        method.buffers = self.read_buffers()
        return method

    @property
    def resume_command(self) -> str:
        objects = self.settings().objects if self.config_file.is_file() else []
        if objects:  # only Python can pass them
            return f'nearkin.resume("{self.folder}"{"".join(f", {name}=..." for name in objects)})'
        return f"nearkin resume {shlex.quote(str(self.folder))}"

    def same_data(self, digest: str) -> bool:
        """Whether items, classes and split are the same as when the run started."""
        return not self.digest_file.is_file() or read_text(self.digest_file) == digest

    def check_data(self, digest: str) -> None:
        if not self.same_data(digest):
            raise UserError(
                f"the data of {self.folder} have changed since the run started (items, classes or split differ); "
                "restore them, or start a new run"
            )

    def log(self, record: dict[str, Any]) -> None:
        """Appends one line to the metrics."""
        try:
            with self.metrics_file.open("a", encoding="utf-8") as stream:
                stream.write(as_line(record))
        except OSError as error:
            raise cannot_write(self.metrics_file, error) from error

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """All records; skips a last line that a killed process did not finish."""
        return read_records(self.metrics_file)

    def evaluations(self) -> list[dict[str, Any]]:
        """The records of evaluations during training."""
        return [record for record in self.metrics if record["kind"] == "evaluation"]

    def keep_records(self, count: int) -> None:
        """Drops all records after the first ``count``: a resumed run logs them again."""
        kept = self.metrics[:count]
        write_text(self.metrics_file, "".join(map(as_line, kept)))

    def read_buffers(self) -> dict[str, Tensor]:
        """What the method's read-out needs besides the model, if anything."""
        older = self.folder / "readout.json"  # written by earlier versions, whose read-outs needed only numbers
        if older.is_file() and not self.buffers_file.is_file():
            return {name: tensor(float(value)) for name, value in read_json(older, dict).items()}
        return read_tensors(self.buffers_file) if self.buffers_file.is_file() else {}

    def save_model(self, model: EmbeddingModel, buffers: Mapping[str, Tensor]) -> None:
        """Saves the model, and what the method's read-out needs besides it."""
        save_model(model, self.model_folder)
        self.__dict__.pop("model", None)  # cached from an earlier epoch
        if buffers:
            write_tensors(self.buffers_file, buffers)

    def has_model(self) -> bool:
        return self.model_folder.is_dir()

    def restore_model(self, model: EmbeddingModel) -> None:
        """Loads the saved weights into the model."""
        restore_weights(model, self.model_folder)

    def save_checkpoint(self, position: Position, state: dict[str, Stateful]) -> None:
        save_checkpoint(self.checkpoint_file, position, state)

    def stopped(self, step: int | None = None) -> BaseException:
        """The exception to raise when the user stops the run; ``step``: the step of the checkpoint, if there is one."""
        where = "" if step is None else f" after step {step}"
        return Interrupted(f"stopped{where}; continue with: {self.resume_command}")

    def write_scores(self, scores: dict[str, Any]) -> None:
        write_json(self.scores_file, scores)

    @property
    def scores(self) -> dict[str, Any]:
        """What training wrote at the end: how the model was ``chosen``, its test scores ``before`` and ``after``, …"""
        try:
            scores = read_json(self.scores_file, dict, finite=False)
            for name, kind in SCORES.items():
                if not isinstance(scores.get(name), kind):
                    raise ValueError(f"{name} is missing or not a {kind.__name__}")
                if kind is dict and not all(isinstance(score, int | float) for score in scores[name].values()):
                    raise ValueError(f"{name} has a value that is not a number")
            return scores
        except ValueError as error:
            raise UserError(
                f"{self.scores_file} is damaged ({error}); delete it and evaluate again with: {self.resume_command}"
            ) from error


class NewRun(Run):
    """A run in ``folder``, or in the first of ``folder-2``, ``folder-3``, … that is free when the run starts.

    Creating the folder claims it, so two runs that start at the same time get different folders.
    """

    def check_free(self) -> None:
        """Another number is always free."""
        check_writable(self.folder.parent)

    def create(self, settings: Settings, data_digest: str) -> None:
        first = self.folder
        others = (first.with_name(f"{first.name}-{number}") for number in count(2))
        self.move_to(next(filter(_made, chain([first], others))))
        super().create(settings, data_digest)


class MemoryRun(Run):
    """A run that writes no files, for a model that is used right away."""

    def __init__(self) -> None:
        super().__init__("memory")
        self.records: list[dict[str, Any]] = []
        self.results: dict[str, Any] = {}
        self.weights: dict[str, Tensor] = {}
        self.buffers: dict[str, Tensor] = {}

    def create(self, settings: Settings, data_digest: str) -> None:
        """Writes nothing."""

    def check_free(self) -> None:
        """Memory is always free."""

    def log(self, record: dict[str, Any]) -> None:
        self.records.append(record)

    def keep_records(self, count: int) -> None:
        del self.records[count:]

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return self.records

    def read_buffers(self) -> dict[str, Tensor]:
        return self.buffers

    @property
    def model(self) -> Embedder:
        """The model with the saved weights, on the CPU."""
        model = deepcopy(self.trained)  # it may still be in training
        model.load_state_dict(self.weights)
        return Embedder(model.cpu())

    def save_model(self, model: EmbeddingModel, buffers: Mapping[str, Tensor]) -> None:
        self.trained = model
        self.weights, self.buffers = _copies(model.state_dict()), _copies(buffers)

    def has_model(self) -> bool:
        return bool(self.weights)

    def restore_model(self, model: EmbeddingModel) -> None:
        model.load_state_dict(self.weights)

    def save_checkpoint(self, position: Position, state: dict[str, Stateful]) -> None:
        """A run in memory cannot be resumed."""

    def write_scores(self, scores: dict[str, Any]) -> None:
        self.results = scores

    @property
    def scores(self) -> dict[str, Any]:
        return self.results

    def stopped(self, step: int | None = None) -> BaseException:  # noqa: ARG002
        return KeyboardInterrupt()


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: each.detach().cpu().clone() for name, each in tensors.items()}


def _made(folder: Path) -> bool:
    """Creates a folder; False if it already exists."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    except OSError as error:
        raise cannot_write(folder, error) from error
    return True
