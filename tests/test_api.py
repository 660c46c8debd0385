"""Whatever takes a path takes it as a text or as a `Path`, with the same outcome."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nearkin
from nearkin.api import embed, evaluate
from nearkin.data import load_dataset
from nearkin.errors import UserError
from nearkin.experiments import compare, reproduce
from nearkin.experiments.run_report import write_report
from nearkin.training import Run, Settings, resume, train

QUICK: dict[str, Any] = {"epochs": 0, "batch_size": 8, "dim": 4, "device": "cpu"}
Door = Callable[[Any, Any, Any], Any]  # data, a run's folder, a place for something new -> what came out


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "x.npz"
    labels = np.arange(32) // 4
    np.savez(file, vectors=np.random.default_rng(0).normal(size=(32, 4)), labels=labels)
    return file


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nearkin.train(data, out=tmp_path_factory.mktemp("runs") / "run", **QUICK).folder


def sought_in(root: str | Path) -> str:
    with pytest.raises(UserError) as refused:
        load_dataset("cub200", root)
    return str(refused.value)


DOORS: dict[str, Door] = {
    "load_dataset": lambda data, *_: len(load_dataset(data)),
    "root": lambda data, *_: sought_in(data),
    "train": lambda data, _, out: nearkin.train(data, out=out, **QUICK).scores,
    "load": lambda _, run, __: nearkin.load(run).encode(np.ones((1, 4))).tolist(),
    "Run": lambda _, run, __: Run(run).folder,
    "Run.open": lambda _, run, __: Run.open(run).folder,
    "Settings.read": lambda _, run, __: Settings.read(type(run)(Path(run) / "config.toml")),
    "training.train": lambda _, run, out: train(Run(run).settings(), out).scores,
    "resume": lambda _, run, __: resume(run).scores,
    "evaluate": lambda data, run, _: evaluate(run, data=data, root=data).scores,
    "embed": lambda data, run, out: embed(run, data, type(out)(f"{out}.npz"), root=data).tolist(),
    "write_report": lambda _, run, out: write_report(run, type(out)(f"{out}.html"), figures=False).stat().st_size > 0,
    "compare": lambda data, _, out: compare(data, ["triplet"], 1, "paper", out=out, per_class=2, **QUICK).scores,
    "reproduce": lambda _, __, out: (
        reproduce("rank", "table-1", out=out) and sorted(file.name for file in Path(out).iterdir())
    ),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_path_may_be_a_text(
    door: str, data: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEARKIN_DATA", str(tmp_path))  # no benchmarks: a table of them is written without training
    monkeypatch.chdir(tmp_path)
    outcomes = [DOORS[door](kind(data), kind(run), kind(tmp_path / kind.__name__)) for kind in (Path, str)]
    assert outcomes[0] == outcomes[1]
