"""Checks that every method trains the same model on two processes as on one, also after one is killed and resumed.

    python benchmarks/torchrun.py                                # all methods
    python benchmarks/torchrun.py --methods rank magnet          # some of them
    python benchmarks/torchrun.py --out docs/results/torchrun.json
    python benchmarks/torchrun.py --communication                # the share of a step that is communication

Each run has two epochs on feature vectors, on the CPU. "two processes" is the largest difference of a weight from the
run of one process. Then the second process kills itself (SIGKILL) in the second epoch; "ended after" is how long the
first one and torchrun took to notice. The run is resumed from its last checkpoint by one process, and a copy of it by
two. Weights differ in the last digits, because gradients are summed in another order. "records" says whether all of
these runs have the same lines in metrics.jsonl, none lost and none doubled.

With ``--communication``, two processes take turns, ten steps each: as in training, and without exchanging anything
(each takes its own embeddings twice and keeps its own gradients). The difference is what communication takes, including
the wait for the other process. Besides, the processes exchange one number per step, so that they stop together ("one
number"). Each time is the 10 % quantile over the steps.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from provenance import made
from safetensors.numpy import load_file

from nearkin.methods import known_methods
from nearkin.training import Run, Settings, loop
from nearkin.training.loop import Trainer
from nearkin.training.settings import make_settings

COMMON: dict[str, Any] = {
    "backbone": "mlp",  # layer norm: batch norm would have other statistics in each process
    "dim": 8,
    "epochs": 2,
    "batch_size": 16,
    "optimizer": "sgd",
    "learning_rate": 0.02,
    "clip_norm": 1.0,
    "checkpoint_steps": 2,
    "keep": "last",  # the trained model, even if the start was better
    "logger": "none",
    "device": "cpu",
}
OWN: dict[str, dict[str, Any]] = {
    "divide-and-conquer": {"learners": 2, "wraps": "margin"},
    "pml": {"loss_name": "MultiSimilarityLoss"},
}
NETWORKS: dict[str, dict[str, Any]] = {
    "small": {"backbone": "small", "dim": 64, "batch_size": 128},
    "mlp": {"backbone": "mlp", "dim": 64, "batch_size": 128},
}
TURN = 10  # steps with communication, then as many without
PHASES = ("exchanged", "alone", "stop")
QUANTILE = 0.1  # of their times: in slower steps, one process waits for other work on the machine
SAME = 1e-4  # largest difference of a weight in the same model


@dataclass(frozen=True)
class Measured:
    """Largest differences of a weight from the run of one process; ``ended_after`` in seconds."""

    method: str
    two_processes: float
    ended_after: float
    resumed_by_one: float
    resumed_by_two: float
    same_records: bool

    @property
    def holds(self) -> bool:
        return self.same_records and max(self.two_processes, self.resumed_by_one, self.resumed_by_two) < SAME


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=[method.name for method in known_methods()])
    parser.add_argument("--out", type=Path, help="also write everything as JSON")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)  # for the processes that torchrun starts
    parser.add_argument("--communication", action="store_true", help="the share of a step that is communication")
    parser.add_argument("--do", choices=["train", "resume", "die", *NETWORKS], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.do:
        work(options.work, options.methods, options.do)
        return
    if options.communication:
        communication()
        return
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(Path(folder), options.methods)
    if options.out:
        content = {**made("cpu"), "measured": [asdict(each) for each in measured]}
        options.out.write_text(json.dumps(content, indent=1) + "\n")
    sys.exit(not all(each.holds for each in measured))


def measure(folder: Path, methods: list[str]) -> list[Measured]:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(24), 8)
    np.savez(folder / "x.npz", vectors=rng.normal(size=(24, 10))[labels] + rng.normal(size=(192, 10)), labels=labels)
    for method in methods:
        loop.train(settings(folder, method), folder / "alone" / method)
    launch(folder, methods, "train")
    seconds = {method: launch(folder, [method], "die") for method in methods}
    for copy in ("one", "two"):
        shutil.copytree(folder / "die", folder / copy)
    for method in methods:
        loop.resume(folder / "one" / method)
    launch(folder, methods, "resume")
    print("| method | two processes | ended after, s | resumed by one | resumed by two | records |")
    print("|---|--:|--:|--:|--:|---|")
    measured = []
    for method in methods:
        each = compared(folder, method, seconds[method])
        differences = (each.two_processes, each.resumed_by_one, each.resumed_by_two)
        first, *rest = (f"{difference:.0e}" for difference in differences)
        records = "the same" if each.same_records else "different"
        print(f"| {method} | {first} | {each.ended_after:.1f} | {' | '.join(rest)} | {records} |", flush=True)
        measured.append(each)
    return measured


def compared(folder: Path, method: str, ended_after: float) -> Measured:
    alone, *others = (Run(folder / name / method) for name in ("alone", "train", "one", "two"))
    expected = load_file(alone.model_folder / "model.safetensors")
    differences = []
    for run in others:
        found = load_file(run.model_folder / "model.safetensors")
        differences.append(max(float(np.abs(found[name] - value).max()) for name, value in expected.items()))
    both, one, two = differences
    lines = {tuple((r["kind"], r["epoch"], r["step"]) for r in run.metrics) for run in (alone, *others)}
    return Measured(method, both, ended_after, one, two, len(lines) == 1)


def settings(folder: Path, method: str) -> Settings:
    return make_settings(folder / "x.npz", method, COMMON | OWN.get(method, {}))


def launch(folder: Path, methods: list[str], do: str) -> float:
    """Runs ``do`` for all methods in two processes; returns the seconds from the death of one to the end of both."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", __file__]
    options = ["--work", str(folder), "--do", do, "--methods", *methods]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=600)
    died = folder / "died"
    if (do == "die") != died.is_file() or (do != "die" and done.returncode):
        sys.exit(f"{do} of {' '.join(methods)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    seconds = time.time() - float(died.read_text()) if do == "die" else 0.0
    died.unlink(missing_ok=True)
    return seconds


def work(folder: Path, methods: list[str], do: str) -> None:
    """Runs in each of the two processes."""
    if do in NETWORKS:
        timed_steps(folder, do)
        return
    if do == "die" and os.environ["RANK"] == "1":
        Trainer._step = dying(Trainer._step, folder)  # type: ignore[method-assign]
    for method in methods:
        if do == "resume":
            loop.resume(folder / "two" / method)
        else:
            loop.train(settings(folder, method), folder / do / method)


def dying(step: Any, folder: Path) -> Any:
    """A step that kills the process in the second epoch."""

    def last(trainer: Trainer, batch: Any) -> None:
        if trainer.position.epoch == 1 and trainer.position.batch == 1:
            (folder / "died").write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        step(trainer, batch)

    return last


def communication() -> None:
    print("| network | parameters | ms a step | without communication | one number | share |")
    print("|---|--:|--:|--:|--:|--:|")
    for network in NETWORKS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            rng, labels = np.random.default_rng(0), np.repeat(np.arange(200), 8)
            if network == "small":
                columns = {"images": rng.integers(0, 256, (len(labels), 28, 28), dtype=np.uint8)}
            else:
                columns = {"vectors": rng.normal(size=(len(labels), 256))}
            np.savez(folder / "x.npz", labels=labels, **columns)
            launch(folder, ["rank"], network)
            found = json.loads((folder / "communication.json").read_text())
        parameters, (exchanged, alone, stop) = found["parameters"], (1e3 * found[name] for name in PHASES)
        share = (exchanged - alone + stop) / (exchanged + stop)
        print(f"| {network} | {parameters:,} | {exchanged:.1f} | {alone:.1f} | {stop:.2f} | {share:.0%} |", flush=True)


def timed_steps(folder: Path, network: str) -> None:
    """Trains in one of two processes and writes the seconds of a step in every phase."""
    step, stop, gathered = Trainer._step, Trainer._save_or_stop, loop.gathered
    seconds: dict[str, list[float]] = {name: [] for name in PHASES}

    def timed_step(trainer: Trainer, batch: Any) -> None:
        alone = bool(trainer.position.step // TURN % 2)
        loop.gathered = (lambda fabric, share: torch.cat([share] * fabric.world_size)) if alone else gathered
        start = time.perf_counter()
        with trainer.fabric.no_backward_sync(trainer.wrapped, enabled=alone):
            step(trainer, batch)
        seconds["alone" if alone else "exchanged"].append(time.perf_counter() - start)

    def timed_stop(trainer: Trainer, asked: bool) -> None:
        start = time.perf_counter()
        stop(trainer, asked)
        seconds["stop"].append(time.perf_counter() - start)

    Trainer._step, Trainer._save_or_stop = timed_step, timed_stop  # type: ignore[method-assign]
    changes = {"epochs": 40, "evaluate_every": 0, "checkpoint_steps": 0, "split": "all", "augment": "none"}
    settings = make_settings(folder / "x.npz", "rank", COMMON | NETWORKS[network] | changes)
    trainer = loop.make_trainer(settings, Run(folder / "run"))
    trainer.train()
    if trainer.fabric.is_global_zero:
        typical = {name: float(np.quantile(values[TURN:], QUANTILE)) for name, values in seconds.items()}
        parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
        (folder / "communication.json").write_text(json.dumps({"parameters": parameters, **typical}))


if __name__ == "__main__":
    main()
