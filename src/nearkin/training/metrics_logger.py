"""What is measured on the way: a line of ``metrics.jsonl`` for each record, and its numbers for the chosen loggers.

A logger has ``log_metrics(metrics, step)`` and ``finalize(status)``, as those of Lightning Fabric have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

from nearkin.errors import UserError, unknown_name
from nearkin.files import write_text
from nearkin.training.run import Run
from nearkin.training.settings import Settings


class Logger(Protocol):
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None: ...
    def finalize(self, status: str) -> None: ...


class MetricsLogger:
    """Writes records of a run; in processes other than the first it does nothing.

    Args:
        settings: ``training.logger`` names the loggers, with commas between.
        step: where the run stands.
    """

    def __init__(self, run: Run, settings: Settings, step: int, active: bool = True) -> None:
        self.run = run
        self.active = active
        names = [name.strip() for name in settings.training.logger.split(",")] if active else []
        self.loggers = [LOGGERS[name](run, settings, step) for name in names if name not in ("", "none")]

    def add(self, record: dict[str, Any]) -> None:
        """Logs a record with ``kind`` and ``step``."""
        if not self.active:
            return
        self.run.log(record)
        for logger in self.loggers:
            logger.log_metrics(_numbers(record), record["step"])

    def close(self, status: str) -> None:
        """Ends the loggers: "success" or "failed"."""
        for logger in self.loggers:
            logger.finalize(status)


def check_loggers(names: str) -> None:
    """Refuses loggers that are unknown or not installed, before anything is written."""
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


def _tensorboard(run: Run, settings: Settings, step: int) -> Logger:  # noqa: ARG001
    from nearkin.training.devices import fabric_module

    # It forgets what a killed process drew beyond the checkpoint.
    loggers: Any = fabric_module("loggers")
    board: Logger = loggers.TensorBoardLogger(
        run.folder, "tensorboard", version="", purge_step=step + 1 if step else None
    )
    return board


def _csv(run: Run, settings: Settings, step: int) -> Logger:  # noqa: ARG001
    from nearkin.training.devices import fabric_module

    loggers: Any = fabric_module("loggers")
    (run.folder / "csv" / "metrics.csv").unlink(missing_ok=True)  # which it would warn of, and write anew
    logger: Logger = loggers.CSVLogger(run.folder, "csv", version="", flush_logs_every_n_steps=1)
    for record in run.metrics:
        logger.log_metrics(_numbers(record), record["step"])
    return logger


class _Wandb:
    """Weights & Biases: a run of the project "nearkin", continued where this one is."""

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
    """MLflow: a run of the experiment "nearkin", continued where this one is."""

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
    "tensorboard": _tensorboard,
    "csv": _csv,
    "wandb": _Wandb,
    "mlflow": _MLflow,
}
