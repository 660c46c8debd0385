"""Two processes give the same loss and gradient as one, so the same weights and scores."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from nearkin.api import make_settings
from nearkin.training import Run, loop

COMMON: dict[str, Any] = {
    "backbone": "mlp",  # layer norm: batch norm would have other statistics in each process
    "dim": 8,
    "epochs": 2,
    "batch_size": 16,
    "optimizer": "sgd",
    "learning_rate": 0.05,
    "validation": 0.25,
    "device": "cpu",
}


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(16), 7)
    centres = rng.normal(size=(16, 10))
    np.savez(tmp_path / "x.npz", vectors=centres[labels] + rng.normal(size=(len(labels), 10)), labels=labels)
    return tmp_path / "x.npz"


CHANGES: dict[str, dict[str, Any]] = {
    "rank": {"per_class": 4, "batch_size": 12, "batches": "neighbourhoods"},  # the nearest classes of each class
    "divide-and-conquer": {"learners": 2, "wraps": "margin", "finetune": 0.5},  # draws, β, unused parameters
    "magnet": {"micro_batch": 3},  # a cluster index, cached losses, micro-batches
}
TRAIN_ALL = """
import sys
from nearkin.cli import app
for config in sys.argv[1:]:
    if code := app(["train", "--config", config], standalone_mode=False):
        sys.exit(code)
"""


def test_two_processes_train_the_same_model_as_one(vectors: Path, tmp_path: Path) -> None:
    alone = {}
    for method, changes in CHANGES.items():
        settings = make_settings(vectors, method, COMMON | changes)
        alone[method] = loop.train(settings, tmp_path / "alone" / method)
        (tmp_path / f"{method}.toml").write_text(settings.to_toml())
        (tmp_path / "runs" / f"x-{method}").mkdir(parents=True)
    (tmp_path / "all.py").write_text(TRAIN_ALL)
    # One launch for all methods: starting processes takes most of the time.
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command = [*launch, "all.py", *(f"{method}.toml" for method in CHANGES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    for method in CHANGES:
        assert_same(
            method, alone[method], Run.open(tmp_path / "runs" / f"x-{method}-2")
        )  # one process chose the folder


def assert_same(method: str, alone: Run, both: Run) -> None:
    expected, found = (load_file(run.model_folder / "model.safetensors") for run in (alone, both))
    for name, value in expected.items():
        assert np.allclose(found[name], value, atol=2e-5), (method, name)
    losses = [[record["loss"] for record in run.metrics if record["kind"] == "training"] for run in (alone, both)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5), method
    scores = [json.loads(run.scores_file.read_text())["after"]["map@r"] for run in (alone, both)]
    assert scores[1] == pytest.approx(scores[0], abs=0.02), method
    assert len(both.metrics) == len(alone.metrics), method  # one process writes, not two
