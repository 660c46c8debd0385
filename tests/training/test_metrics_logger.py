"""Loggers get the numbers of every record, also in a resumed run."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from conftest import TINY_GLYPHS

import nearkin
from nearkin.errors import UserError
from nearkin.training.metrics_logger import LOGGERS

QUICK: dict[str, Any] = {"epochs": 1, "batch_size": 16, "dim": 8, "per_class": 4, "device": "cpu", "workers": 0}


def rows(file: Path) -> list[dict[str, str]]:
    with file.open() as stream:
        return list(csv.DictReader(stream))


def test_csv_has_every_epoch_of_a_run_that_was_continued(tmp_path: Path) -> None:
    run = nearkin.train(TINY_GLYPHS, out=tmp_path / "run", logger="tensorboard, csv", **QUICK)
    nearkin.resume(run, epochs=2)
    found = rows(run.folder / "csv" / "metrics.csv")
    losses = [record["loss"] for record in run.metrics if record["kind"] == "training"]
    assert [float(row["training/loss"]) for row in found if row["training/loss"]] == pytest.approx(losses)
    assert len(losses) == 2
    assert list((run.folder / "tensorboard").glob("events.*"))


class Recorder:
    """Replaces the services and records their calls."""

    def __init__(self) -> None:
        self.numbers: list[tuple[str, float, int]] = []
        self.begun = 0
        self.ended = 0


def test_weights_and_biases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Recorder()

    class Session:
        def log(self, metrics: dict[str, float], step: int) -> None:
            told.numbers += [(name, value, step) for name, value in metrics.items()]

        def finish(self, exit_code: int) -> None:
            assert exit_code == 0
            told.ended += 1

    def init(**options: Any) -> Session:
        told.begun += 1
        assert options["project"] == "nearkin" and options["resume"] == "allow" and options["name"] == "run"
        return Session()

    module = ModuleType("wandb")
    module.init = init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    nearkin.train(TINY_GLYPHS, out=tmp_path / "run", logger="wandb", **QUICK)
    assert (told.begun, told.ended) == (1, 1)
    assert "training/loss" in {name for name, _, _ in told.numbers}


def test_mlflow_goes_on_with_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Recorder()

    class MlflowClient:
        def get_experiment_by_name(self, name: str) -> Any:
            assert name == "nearkin"

        def create_experiment(self, name: str) -> str:
            return f"experiment {name}"

        def create_run(self, experiment: str, run_name: str) -> Any:
            assert (experiment, run_name) == ("experiment nearkin", "run")
            told.begun += 1
            return SimpleNamespace(info=SimpleNamespace(run_id="seven"))

        def log_param(self, run: str, name: str, value: object) -> None:  # noqa: ARG002
            assert "." in name

        def log_metric(self, run: str, name: str, value: float, step: int) -> None:
            assert run == "seven" and "@" not in name  # MLflow rejects it
            told.numbers.append((name, value, step))

        def set_terminated(self, run: str, status: str) -> None:  # noqa: ARG002
            assert status == "FINISHED"
            told.ended += 1

    package, module = ModuleType("mlflow"), ModuleType("mlflow.tracking")
    module.MlflowClient = MlflowClient  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", package)
    monkeypatch.setitem(sys.modules, "mlflow.tracking", module)
    run = nearkin.train(TINY_GLYPHS, out=tmp_path / "run", logger="mlflow", **QUICK)
    nearkin.resume(run, epochs=2)
    assert (told.begun, told.ended) == (1, 2)
    assert "test/recall_at_1" in {name for name, _, _ in told.numbers}


def test_a_missing_package_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"needs wandb; run `pip install 'nearkin\[wandb\]'`"):
        nearkin.train(TINY_GLYPHS, out=tmp_path / "run", logger="wandb", **QUICK)
    assert not (tmp_path / "run").exists()


def test_a_run_that_fails_ends_its_loggers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    told = SimpleNamespace(log_metrics=lambda *_: None, finalize=ended.append)
    monkeypatch.setitem(LOGGERS, "csv", lambda *_: told)

    def fail(*_: Any) -> None:
        raise RuntimeError("of a callback")

    with pytest.raises(RuntimeError, match="of a callback"):
        nearkin.train(TINY_GLYPHS, out=tmp_path / "run", logger="csv", callbacks=[fail], **QUICK)
    assert ended == ["failed"]
