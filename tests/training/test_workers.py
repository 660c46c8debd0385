"""A run starts its worker processes once."""

from __future__ import annotations

from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

import nearkin


def test_epochs_and_evaluations_share_their_workers(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[BaseProcess] = []
    start = BaseProcess.start
    monkeypatch.setattr(BaseProcess, "start", lambda process: (started.append(process), start(process)))
    settings = {
        "backbone": "small",
        "weights": "none",
        "image_size": 16,
        "batch_size": 4,
        "logger": "none",
        "per_class": 2,
    }
    nearkin.train(str(photos), out=tmp_path / "run", epochs=2, evaluate_every=1, workers=2, **settings)
    assert len(started) == 2
    assert not any(process.is_alive() for process in started)
