"""Nothing is lost: damaged files give one sentence, a failed resume changes nothing, a logger never ends a run."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TINY_GLYPHS
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer.record_writer import RecordWriter

import nearkin
from nearkin.api import make_settings
from nearkin.errors import UserError
from nearkin.experiments import runs
from nearkin.training import Run, Settings, loop
from nearkin.training.loop import Trainer
from nearkin.training.metrics_logger import LOGGERS
from nearkin.training.records import read_records

QUICK: dict[str, Any] = {"epochs": 2, "batch_size": 16, "per_class": 4, "dim": 8, "device": "cpu", "logger": "none"}
RECORD = '{"kind": "training", "epoch": 1, "step": 3, "loss": 0.5, "learning_rate": 0.1}'


def settings(**changes: Any) -> Settings:
    return make_settings(TINY_GLYPHS, "rank", QUICK | changes)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return loop.train(settings(epochs=1), tmp_path_factory.mktemp("trained") / "run").folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Run:
    """A copy of a finished run, for one test."""
    return Run(shutil.copytree(trained, tmp_path / "run"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def damage(run: Run, **changes: Any) -> None:
    """Changes values in the checkpoint."""
    state = torch.load(run.checkpoint_file, weights_only=True)
    for name, value in changes.items():
        where, _, field = name.partition("__")
        state[where][field] = value
    torch.save(state, run.checkpoint_file)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "nonsense",
        "[]",
        "3",
        "{}",
        '{"kind": ["training"]}',
        RECORD.replace("training", "dreaming"),
        RECORD.replace("0.5", '"low"'),
        RECORD.replace("0.5", "1e999"),
        RECORD.replace("0.5", "NaN"),
        RECORD.replace('"loss": 0.5, ', ""),
        RECORD.replace('"epoch": 1', '"epoch": -1'),
        RECORD.replace('"step": 3', '"step": 3.5'),
        '{"kind": "evaluation", "epoch": 1, "step": 3, "recall@1": 0.5, "map@r": 0.5}',
        '{"a":' * 100_000,
    ],
)
def test_a_line_that_is_not_a_record_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(f"{RECORD}\n{line}\n{RECORD}\n")
    with pytest.raises(UserError, match=r"^line 2 of .*metrics\.jsonl is damaged"):
        read_records(tmp_path / "metrics.jsonl")


def test_metrics_that_are_not_text_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b"\xff\xfe\n")
    with pytest.raises(UserError, match="is not a text file"):
        read_records(tmp_path / "metrics.jsonl")


def test_a_number_that_is_not_finite_is_left_out_of_the_records(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.log(json.loads(RECORD) | {"own": float("nan")})
    assert run.metrics == [json.loads(RECORD)]


@pytest.mark.parametrize(
    "changes",
    [
        {"position__epoch": "one"},
        {"position__epoch": -1},
        {"position__records": 1.5},
        {"position__best": float("nan")},
        {"position__step": True},
        {"method__buffers": "none"},
        {"optimizer__param_groups": {}},
        {"sampler__position": None},
    ],
    ids=str,
)
def test_a_checkpoint_with_a_field_of_another_type_is_refused_and_nothing_changes(
    run: Run, changes: dict[str, Any]
) -> None:
    run.scores_file.unlink()
    damage(run, **changes)
    with run.metrics_file.open("a") as stream:  # as a killed process leaves it
        stream.write(f"{RECORD}\n")
    before = contents(run.folder)
    with pytest.raises(UserError, match=r"^checkpoint "):
        loop.resume(run.folder)
    assert contents(run.folder) == before


def test_a_resumed_run_that_fails_at_its_first_step_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = loop.train(settings(stop_after=1, logger="tensorboard, csv"), tmp_path / "run")
    run.change_settings(run.settings().changed(training={"stop_after": 0}))
    with run.metrics_file.open("a") as stream:
        stream.write(f"{RECORD}\n")
    before = contents(run.folder)

    def fail(*_: Any) -> None:
        raise UserError("the loss became nan")

    monkeypatch.setattr(Trainer, "_step", fail)
    with pytest.raises(UserError, match="became nan"):
        loop.resume(run.folder)
    assert contents(run.folder) == before


def test_pickled_code_is_refused_without_the_advice_to_run_it(run: Run) -> None:
    torch.save({"position": Path("x")}, run.checkpoint_file)
    with pytest.raises(UserError, match="more than tensors and plain values") as caught:
        loop.resume(run.folder)
    assert "weights_only" not in str(caught.value)


@pytest.mark.parametrize("when", ["begun", "told", "ended"])
def test_a_logger_that_fails_costs_a_warning_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    def step(name: str) -> None:
        if name == when:
            raise OSError(28, "No space left on device")

    class Board:
        def __init__(self, *_: Any) -> None:
            step("begun")

        def log_metrics(self, *_: Any) -> None:
            step("told")

        def finalize(self, *_: Any) -> None:
            step("ended")

    monkeypatch.setitem(LOGGERS, "tensorboard", Board)
    with caplog.at_level(logging.WARNING, "nearkin"):
        run = loop.train(settings(logger="tensorboard"), tmp_path / "run")
    assert run.scores["after"]
    warnings = [record.message for record in caplog.records if "logger tensorboard failed" in record.message]
    assert len(warnings) == 1 and "No space left" in warnings[0]


def test_tensorboard_says_at_once_that_the_disk_is_full(tmp_path: Path) -> None:
    board: Any = LOGGERS["tensorboard"](Run(tmp_path), settings(), 0)
    with Path("/dev/full").open("wb", buffering=0) as full:
        board.writer = RecordWriter(full)
        with pytest.raises(OSError, match="No space left"):
            board.log_metrics({"training/loss": 0.5}, 1)


def test_tensorboard_shows_every_epoch_once_also_of_a_resumed_run(tmp_path: Path) -> None:
    run = loop.train(settings(logger="tensorboard", stop_after=1), tmp_path / "run")
    loop.resume(run.folder, epochs=2)
    shown = EventAccumulator(str(run.folder / "tensorboard")).Reload()
    losses = [(r["step"], r["loss"]) for r in run.metrics if r["kind"] == "training"]
    assert [event.step for event in shown.Scalars("training/loss")] == [step for step, _ in losses]
    assert [event.value for event in shown.Scalars("training/loss")] == pytest.approx([loss for _, loss in losses])


@pytest.mark.parametrize("files", [[], ["data.sha256"], [".nearkin-data-x1y2.sha256"], ["data.sha256", ".nearkin-c-1"]])
def test_a_run_that_was_killed_before_it_began_is_begun_again(tmp_path: Path, files: list[str]) -> None:
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(UserError, match="train again with the same folder"):
        loop.resume(tmp_path)
    assert loop.train(settings(epochs=0), tmp_path).scores
    assert not list(tmp_path.glob(".nearkin-*"))


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "data.sha256").touch()
    (tmp_path / "config.toml").write_text("of something else")
    (tmp_path / "thesis.txt").touch()
    (tmp_path / "data.sha256").unlink()
    with pytest.raises(UserError, match="already exists and is not a run"):
        loop.train(settings(), tmp_path)


def test_a_compared_run_that_is_killed_right_after_its_scores_knows_where_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    original = Run.write_scores

    def write_and_die(run: Run, scores: dict[str, Any]) -> None:
        original(run, scores)
        raise Killed

    monkeypatch.setattr(Run, "write_scores", write_and_die)
    task = runs.Task("rank", settings(), tmp_path / "rank-0")
    with pytest.raises(Killed):
        runs.attempt(task)
    assert task.finished
    assert runs.provenance_of([Run(task.folder)])["nearkin"] == nearkin.__version__


def test_a_run_with_a_strange_name_reads_its_own_settings(tmp_path: Path) -> None:
    folder = tmp_path / 'a\x7f\x1b[31m"\\\n\t#é'
    folder.mkdir()
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(8), 6)
    np.savez(folder / "x.npz", vectors=rng.normal(size=(8, 6))[labels], labels=labels)
    run = nearkin.train(folder / "x.npz", out=folder / "run", **(QUICK | {"epochs": 1}))
    assert run.settings().data.source == str(folder / "x.npz")
    assert nearkin.evaluate(run.folder).scores == run.scores["after"] | nearkin.evaluate(run.folder).scores


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"verdict": 3}', "[" * 100_000, '{"verdict": "x", "after": []}'])
def test_scores_that_are_damaged_are_one_sentence(run: Run, content: str) -> None:
    run.scores_file.write_text(content)
    with pytest.raises(UserError, match="delete it and evaluate again"):
        _ = run.scores
