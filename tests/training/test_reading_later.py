"""On a GPU, losses are read every few steps: failed steps must not reach the weights, and runs must resume as before.

Fused optimisers make this possible. They exist on the CPU too, which lets most of it be tested there.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TINY_GLYPHS
from torch import Tensor

from nearkin.api import make_settings
from nearkin.errors import Interrupted, UserError
from nearkin.losses import graphed
from nearkin.training import Run, Settings, compiling, loop, optimise
from nearkin.training.loop import Trainer, make_trainer

on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def settings(**changes: Any) -> Settings:
    method = changes.pop("method", "rank")
    quick = {"epochs": 4, "batch_size": 16, "dim": 8, "device": "cpu"}
    return make_settings(TINY_GLYPHS, method, quick | changes)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads every five steps, on the CPU too."""
    monkeypatch.setattr(optimise, "can_fuse", lambda _: True)
    monkeypatch.setattr(loop, "READ_EVERY", 5)


def copied(trainer: Trainer) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in trainer.model.named_parameters()}


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "rmsprop"])
@pytest.mark.parametrize("broken", ["loss", "gradient"])
def test_a_failed_step_never_reaches_the_weights(tmp_path: Path, optimizer: str, broken: str) -> None:
    trainer = make_trainer(settings(optimizer=optimizer, per_class=4), Run(tmp_path / "run"))
    original: Callable[..., Tensor] = trainer.method.loss.forward
    before: dict[str, Tensor] = {}

    def forward(embeddings: Tensor, labels: Tensor) -> Tensor:
        if trainer.position.step != 6:
            return original(embeddings, labels)
        before.update(copied(trainer))
        if broken == "loss":
            return original(embeddings, labels) * torch.nan
        return embeddings.sum().abs().pow(0.5) * 0 + (embeddings * 0).sum().sqrt()  # 0, with a gradient of NaN

    trainer.method.loss.forward = forward
    with pytest.raises(UserError, match=f"the {broken} became nan at step 6"):
        trainer.train()
    # RMSprop cannot skip a step, so all its losses are read; the others are read at the end of the epoch.
    assert trainer.position.step == (7 if optimizer == "rmsprop" else 9)
    assert before and all(torch.equal(before[name], value) for name, value in copied(trainer).items())


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("step", [4, 5, 6])
def test_a_stopped_run_continues_to_the_same_weights_and_losses(tmp_path: Path, step: int) -> None:
    whole = loop.train(settings(per_class=4), tmp_path / "whole")
    stopped = make_trainer(settings(per_class=4), Run(tmp_path / "stopped"))
    stop_at(stopped, step)
    with pytest.raises(Interrupted):
        stopped.train()
    assert_same(loop.resume(tmp_path / "stopped"), whole)


@on_cuda
@pytest.mark.parametrize("compiled", ["off", "on"])
def test_a_run_on_cuda_continues_to_the_same_weights_and_losses(
    tmp_path: Path, compiled: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    torch.use_deterministic_algorithms(True, warn_only=True)
    request.addfinalizer(lambda: torch.use_deterministic_algorithms(False))
    chosen = settings(device="cuda", precision="32-true", compile=compiled, per_class=4)
    whole = loop.train(chosen, tmp_path / "whole")
    stopped = make_trainer(chosen, Run(tmp_path / "stopped"))
    stop_at(stopped, 5)
    with pytest.raises(Interrupted):
        stopped.train()
    assert_same(loop.resume(tmp_path / "stopped"), whole, atol=1e-4)
    assert set(torch.load(whole.checkpoint_file, weights_only=True)["learner"]) == set(whole.model.model.state_dict())


@on_cuda
@pytest.mark.parametrize(
    "method", ["facility-location", "rank", "triplet", "margin", "proxy-nca", "nca", "contrastive", "lifted", "softmax"]
)
def test_no_step_waits_for_cuda(tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "READ_EVERY", 1000)
    trainer = make_trainer(settings(device="cuda", method=method, compile="off"), Run(tmp_path / "run"))
    step = trainer._step

    def watched(batch: Any) -> None:
        torch.cuda.set_sync_debug_mode("error" if trainer.position.step else "default")  # the first one prepares
        try:
            step(batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    trainer._step = watched  # type: ignore[method-assign]
    trainer.train()
    assert trainer.position.step > 5


@on_cuda
@pytest.mark.parametrize(
    ("method", "changes", "recorded"),
    [
        ("rank", {}, True),
        ("margin", {}, True),
        ("proxy-nca", {}, True),
        ("facility-location", {}, True),
        ("facility-location", {"exchange": "all"}, False),  # which the host solves
        ("spectral", {"batch_size": 32}, False),
        ("magnet", {}, True),
        ("magnet", {"active_share": 0.25}, True),
        ("magnet", {"candidates": "index"}, False),
        ("divide-and-conquer", {"learners": 2}, True),
    ],
)
def test_recorded_losses_train_the_same_weights(
    tmp_path: Path, method: str, changes: dict[str, Any], recorded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record(*inputs: Any, **more: Any) -> Any:
        graphs.append(graph := graphed(*inputs, **more))
        return graph

    graphs: list[Any] = []
    monkeypatch.setattr(compiling, "graphed", record)
    chosen = settings(device="cuda", precision="32-true", method=method, **changes)
    found = loop.train(chosen, tmp_path / "recorded")
    steps = max(record["step"] for record in found.metrics)
    assert sum(graph.calls for graph in graphs) == (steps if recorded else 0)
    monkeypatch.setattr(loop, "recorded_losses", lambda *_: nullcontext())
    assert_same(found, loop.train(chosen, tmp_path / "plain"), atol=1e-6)


def stop_at(trainer: Trainer, step: int) -> None:
    """Requests a stop after a step, as Ctrl-C does."""
    save_or_stop: Any = trainer._save_or_stop
    trainer._save_or_stop = lambda _: save_or_stop(trainer.position.step >= step)  # type: ignore[method-assign, assignment]


def assert_same(found: Run, expected: Run, atol: float = 0.0) -> None:
    weights, expected_weights = (run.model.model.state_dict() for run in (found, expected))
    for name, value in expected_weights.items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=atol)
    losses, expected_losses = ([r["loss"] for r in run.metrics if r["kind"] == "training"] for run in (found, expected))
    assert losses == pytest.approx(expected_losses, abs=atol, rel=0)
