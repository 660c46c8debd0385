"""Logs metrics during training: each record is a line of ``metrics.jsonl``, and its numbers go to the chosen loggers.

Loggers have the methods ``log_metrics(metrics, step)`` and ``finalize(status)``, as in Lightning Fabric.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Protocol

from nearkin.errors import UserError, unknown_name
from nearkin.files import write_text
from nearkin.training.checkpoint import Position
from nearkin.training.run import Run
from nearkin.training.settings import Settings

log = logging.getLogger("nearkin")


class Logger(Protocol):
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None: ...
    def finalize(self, status: str) -> None: ...


class MetricsLogger:
    """Writes the records of a run; does nothing in processes other than the first.

    If a logger fails, a warning is shown and the run continues without it. Nothing is written before the first record,
    so a run that cannot be resumed stays unchanged.

    Args:
        settings: ``training.logger`` names the loggers, separated by commas.
        position: the position of the run; records after it were written by a process that was killed.
    """

    def __init__(self, run: Run, settings: Settings, position: Position, active: bool = True) -> None:
        self.run, self.settings, self.active = run, settings, active
        self.step, self.known = position.step, position.records
        self.loggers: dict[str, Logger] | None = None

    def add(self, record: dict[str, Any]) -> None:
        """Logs a record with ``kind`` and ``step``."""
        if not self.active:
            return
        if self.loggers is None:
            self.run.keep_records(self.known)
            self.loggers = {}
            for name in map(str.strip, self.settings.training.logger.split(",")):
                if name not in ("", "none"):
                    with self._left_out_if_it_fails(name):
                        self.loggers[name] = LOGGERS[name](self.run, self.settings, self.step)
        self.run.log(record)
        for name, logger in list(self.loggers.items()):
            with self._left_out_if_it_fails(name):
                logger.log_metrics(_numbers(record), record["step"])

    def close(self, status: str) -> None:
        """Closes the loggers; ``status``: "success" or "failed"."""
        for name, logger in list((self.loggers or {}).items()):
            with self._left_out_if_it_fails(name):
                logger.finalize(status)

    @contextmanager
    def _left_out_if_it_fails(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # third-party code, files and services may raise anything
            assert self.loggers is not None
            self.loggers.pop(name, None)
            log.warning("logger %s failed and is now off (%s); metrics.jsonl still has all metrics", name, error)


def check_loggers(names: str) -> None:
    """Raises if a logger is unknown or not installed, before anything is written."""
    for name in map(str.strip, names.split(",")):
        if name not in ("", "none", *LOGGERS):
            raise unknown_name("logger", name, LOGGERS)
        if name in ("wandb", "mlflow"):
            try:
                import_module(name)
            except ImportError as error:
                raise UserError(f"logger=\"{name}\" needs {name}; run `pip install 'nearkin[{name}]'`") from error


def _numbers(record: dict[str, Any]) -> dict[str, float]:
    prefix = record.get("split", record["kind"])
    return {f"{prefix}/{name}": value for name, value in record.items() if isinstance(value, float)}


class _TensorBoard:
    """Writes the event file directly: TensorBoard's own writer uses a thread, which loses the error of a full disk."""

    def __init__(self, run: Run, settings: Settings, step: int) -> None:  # noqa: ARG002
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder = run.folder / "tensorboard"
        folder.mkdir(parents=True, exist_ok=True)
        self.stream = (folder / f"events.out.tfevents.{time.time_ns()}.{os.getpid()}").open("wb", buffering=0)
        self.writer = RecordWriter(self.stream)
        self._write(Event(file_version="brain.Event:2"))
        if step:  # readers discard what a killed process logged after the checkpoint
            self._write(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._write(Event(step=step, summary=Summary(value=values)))

    def finalize(self, status: str) -> None:  # noqa: ARG002
        self.stream.close()

    def _write(self, event: Any) -> None:
        event.wall_time = time.time()
        self.writer.write(event.SerializeToString())
        self.writer.flush()


def _csv(run: Run, settings: Settings, step: int) -> Logger:  # noqa: ARG001
    from nearkin.training.devices import fabric_module

    loggers: Any = fabric_module("loggers")
    (run.folder / "csv" / "metrics.csv").unlink(missing_ok=True)  # CSVLogger would warn and overwrite it
    logger: Logger = loggers.CSVLogger(run.folder, "csv", version="", flush_logs_every_n_steps=1)
    for record in run.metrics:
        logger.log_metrics(_numbers(record), record["step"])
    return logger


class _Wandb:
    """Weights & Biases: a run of the project "nearkin"; a resumed run continues it."""

    def __init__(self, run: Run, settings: Settings, step: int) -> None:  # noqa: ARG002
        import wandb

        folder = run.folder.absolute()
        identity = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
        config = settings.to_tables()
        self.session = wandb.init(
            project="nearkin", name=folder.name, dir=str(folder), id=identity, resume="allow", config=config
        )

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.session.log(metrics, step=step)

    def finalize(self, status: str) -> None:
        self.session.finish(exit_code=int(status != "success"))


class _MLflow:
    """MLflow: a run of the experiment "nearkin"; a resumed run continues it."""

    def __init__(self, run: Run, settings: Settings, step: int) -> None:  # noqa: ARG002
        from mlflow.tracking import MlflowClient

        self.client = MlflowClient()
        known = run.folder / "mlflow.txt"
        if known.is_file():
            self.identity = known.read_text(encoding="utf-8")
            return
        found = self.client.get_experiment_by_name("nearkin")
        experiment = found.experiment_id if found else self.client.create_experiment("nearkin")
        self.identity = self.client.create_run(experiment, run_name=run.folder.name).info.run_id
        write_text(known, self.identity)
        for section, table in settings.to_tables().items():
            for name, value in table.items():
                self.client.log_param(self.identity, f"{section}.{name}", value)

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        for name, value in metrics.items():
            self.client.log_metric(self.identity, name.replace("@", "_at_"), value, step=step)

    def finalize(self, status: str) -> None:
        self.client.set_terminated(self.identity, "FINISHED" if status == "success" else "FAILED")


LOGGERS: dict[str, Callable[[Run, Settings, int], Logger]] = {
    "tensorboard": _TensorBoard,
    "csv": _csv,
    "wandb": _Wandb,
    "mlflow": _MLflow,
}
