"""Runs in parallel: the same results, failures stay separate, a stop reaches all of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from nearkin.errors import ResourceError
from nearkin.experiments import compare, pool
from nearkin.experiments.pool import WorkerPool, _attempt_in_worker
from nearkin.experiments.runs import Task
from nearkin.training import Run
from nearkin.training.settings import make_settings

QUICK: dict[str, Any] = {"epochs": 2, "batch_size": 16, "dim": 16, "backbone": "linear", "device": "cpu"}


def in_a_worker(vectors: str, folder: Path) -> str | None:
    """The outcome of a triplet run for the parent, as if another process had trained it."""
    task = Task("triplet, seed 0", make_settings(vectors, "triplet", QUICK), folder)
    outcome = _attempt_in_worker(task)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return outcome.refusal(task)


def test_side_by_side_gives_what_one_after_the_other_gives(vectors: str, tmp_path: Path) -> None:
    methods = ["spectral", "triplet", "margin"]  # spectral fails: 16 items cannot span 16 dimensions
    one, two = (compare(vectors, methods, out=tmp_path / str(jobs), seeds=2, **QUICK, jobs=jobs) for jobs in (1, 2))
    assert one.scores == two.scores and set(two.scores) == {"triplet", "margin"}
    assert one.refused == two.refused and "always 0" in two.refused["spectral"]


def test_an_unexpected_error_ends_the_comparison_with_the_name_of_its_run(
    vectors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("nearkin.experiments.runs.train", broken)
    with pytest.raises(RuntimeError, match="triplet, seed 0 ended with ZeroDivisionError: oh"):
        compare(vectors, ["triplet"], out=tmp_path / "out", **QUICK)
    with pytest.raises(RuntimeError, match="triplet, seed 0 ended with ZeroDivisionError: oh"):
        in_a_worker(vectors, tmp_path / "triplet-0")


@pytest.mark.parametrize("which", [0, 1])
def test_a_worker_that_is_killed_ends_the_comparison_with_advice_and_leaves_no_process(
    which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "LAST_STEP", 2.0)
    with pytest.raises(ResourceError, match=r"memory ran out.* fewer jobs"), WorkerPool(2) as workers:
        processes: list[BaseProcess] = []
        for _ in range(2):
            workers.submit(time.sleep, 600)
            processes += workers.processes - set(processes)
        time.sleep(1)
        os.kill(processes[which].pid or 0, signal.SIGKILL)
        for _ in range(100):
            time.sleep(0.1)
            workers.check()
    assert all(process.exitcode is not None for process in processes)


def test_a_full_disk_is_no_verdict_on_a_method(vectors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise ResourceError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr("nearkin.experiments.runs.train", full)
        with pytest.raises(ResourceError, match="no space left"):
            compare(vectors, ["triplet", "softmax"], out=tmp_path / "out", seeds=1, **QUICK)
        with pytest.raises(ResourceError, match="triplet, seed 0: no space left"):
            in_a_worker(vectors, tmp_path / "triplet-0")
    assert not compare(vectors, ["triplet", "softmax"], out=tmp_path / "out", seeds=1, **QUICK).refused


def test_a_stop_reaches_every_process_and_leaves_none(tmp_path: Path) -> None:
    """Also with child processes that decode images."""
    settings = {"epochs": 5000, "batch_size": 8, "dim": 4, "device": "cpu"}
    settings |= {"augment": "crop-flip", "workers": 1}
    command = [sys.executable, "-m", "nearkin", "compare", "glyphs:classes=12,per_class=6,size=16", "--jobs=2"]
    command += ["--methods=triplet,softmax", "--seeds=1", f"--out={tmp_path / 'out'}"]
    command += [f"--set={name}={value}" for name, value in settings.items()]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    runs = [Run(tmp_path / "out" / name) for name in ("triplet-0", "softmax-0")]
    try:
        deadline = time.monotonic() + 300
        while not all(run.checkpoint_file.is_file() for run in runs):
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        asked = time.time()
        os.killpg(process.pid, signal.SIGINT)  # like a terminal: child processes get it too
        said = process.communicate(timeout=60)[1]
    finally:
        process.kill()  # its child processes end on their own
    assert process.returncode == 130 and "run the same command to continue" in said and "Traceback" not in said
    assert all(run.checkpoint_file.stat().st_mtime > asked and not run.scores_file.is_file() for run in runs)
    assert _nobody_is_left_of(process.pid)


def _nobody_is_left_of(group: int) -> bool:
    for _ in range(100):  # the resource tracker of Python ends a moment later
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False
