"""Compiled backbones and recorded losses are undone: both may be the user's own modules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from conftest import TINY_GLYPHS
from torch import Tensor, nn

from nearkin.api import make_settings
from nearkin.errors import Interrupted, UserError
from nearkin.losses import NCALoss, ProxyNCALoss, RankApproximationLoss, SoftmaxLoss, SpectralClusteringLoss
from nearkin.methods import make_method
from nearkin.methods.base import StepLoss, method_class, recordable_losses
from nearkin.methods.batches import with_batches
from nearkin.models import EmbeddingModel, ModelSpec
from nearkin.training import Run, compiling, optimise
from nearkin.training.compiling import compile_backbone, recorded_losses
from nearkin.training.loop import make_trainer
from nearkin.training.objects import module_digest

CPU = torch.device("cpu")


def is_compiled(module: nn.Module) -> bool:
    return module._compiled_call_impl is not None


def test_undoing_restores_the_module() -> None:
    model = EmbeddingModel(ModelSpec("mlp", dim=2, features=3))
    model.backbone.compile(backend="eager")
    own = model.backbone._compiled_call_impl
    undo = compile_backbone(model, graph=True)
    assert model.backbone._compiled_call_impl is not own and model._forward_pre_hooks
    undo()
    assert model.backbone._compiled_call_impl is own and not model._forward_pre_hooks
    assert model(torch.ones(1, 3)).shape == (1, 2)


def test_a_trainer_that_never_trains_compiles_nothing(tmp_path: Path) -> None:
    changes = {"epochs": 1, "batch_size": 16, "per_class": 4, "compile": "on"}
    trainer = make_trainer(make_settings(TINY_GLYPHS, "rank", changes), Run(tmp_path / "run"))
    assert not is_compiled(trainer.model.backbone)


class OwnLoss(RankApproximationLoss):
    """A user's loss, which may change from batch to batch."""


class Graph:
    """Stands for a recorded loss, and counts its calls."""

    def __init__(self, loss: nn.Module) -> None:
        self.calls, self.plain = 0, loss._call_impl

    def forward(self, *inputs: Any, **more: Any) -> Any:
        self.calls += 1
        return self.plain(*inputs, **more)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """The recordings that are made, without CUDA: (graph, batch size, dim, further inputs)."""

    def record(loss: nn.Module, batch_size: int, dim: int, _: torch.device, **more: Tensor) -> Any:
        if isinstance(loss, SpectralClusteringLoss):
            raise UserError("it reads data")
        if isinstance(loss, ProxyNCALoss):
            raise KeyboardInterrupt
        made.append((graph := Graph(loss), batch_size, dim, {name: tuple(each.shape) for name, each in more.items()}))
        return graph

    made: list[tuple[object, ...]] = []
    monkeypatch.setattr(compiling, "graphed", record)
    return made


def test_only_losses_whose_changes_are_known_are_recorded(graphs: list[tuple[object, ...]]) -> None:
    known, with_ids = RankApproximationLoss(), RankApproximationLoss()
    compiled, hooked = RankApproximationLoss(), SoftmaxLoss(classes=4, dim=8)
    compiled.compile(backend="eager")
    hooked.classifier.register_forward_hook(lambda *_: None)
    own = compiled._compiled_call_impl
    others = [OwnLoss(), SpectralClusteringLoss(), hooked, compiled]
    losses = [StepLoss(known, 8), *(StepLoss(loss, 8) for loss in others), StepLoss(with_ids, 4, ("clusters",))]
    with recorded_losses(losses, 16, torch.device("cuda")):
        assert [each[1:] for each in graphs] == [(16, 8, {}), (16, 4, {"clusters": (16,)})]
        assert [is_compiled(each.loss) for each in losses] == [True, False, False, False, True, True]
        assert not known.state_dict()
    assert not any(is_compiled(loss) for loss in (known, with_ids, *others[:3])) and compiled._compiled_call_impl is own


def test_recording_leaves_no_trace(graphs: list[tuple[object, ...]]) -> None:
    """Otherwise, a second recording would see changed settings, and a comparison another loss."""
    loss, points, labels = NCALoss(), torch.randn(8, 4), torch.arange(8) // 2
    before = module_digest(loss, weights=True), dict(vars(loss))
    for run in range(2):
        with recorded_losses([StepLoss(loss, 4)], 8, torch.device("cuda")):
            loss(points, labels)
        assert graphs[run][0].calls == 1  # type: ignore[attr-defined]
        assert (module_digest(loss, weights=True), dict(vars(loss))) == before
    with (
        pytest.raises(KeyboardInterrupt),
        recorded_losses([StepLoss(loss, 4), StepLoss(ProxyNCALoss(4, 4), 4)], 8, CPU),
    ):
        pass
    assert not is_compiled(loss)


@pytest.mark.parametrize("ends", ["well", "error", "interrupt"])
def test_training_records_its_loss_and_gives_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, graphs: list[tuple[object, ...]], ends: str
) -> None:
    monkeypatch.setattr(optimise, "can_fuse", lambda _: True)
    changes = {"epochs": 1, "batch_size": 16, "per_class": 4, "dim": 8, "device": "cpu"}
    trainer = make_trainer(make_settings(TINY_GLYPHS, "rank", changes), Run(tmp_path / "run"))
    if ends != "well":
        error = UserError("failed") if ends == "error" else KeyboardInterrupt()
        monkeypatch.setattr(trainer, "_estimate_batch_norm", Mock(side_effect=error))
    with nullcontext() if ends == "well" else pytest.raises((UserError, Interrupted)):
        trainer.train()
    ((graph, *rest),) = graphs
    assert rest == [16, 8, {}]
    assert graph.calls == trainer.position.step > 0  # type: ignore[attr-defined]
    assert not is_compiled(trainer.method.loss)


def test_a_loss_that_checks_every_batch_is_not_recorded(tmp_path: Path, graphs: list[tuple[object, ...]]) -> None:
    changes = {"epochs": 1, "batch_size": 16, "per_class": 4, "dim": 8, "device": "cpu", "optimizer": "rmsprop"}
    make_trainer(make_settings(TINY_GLYPHS, "rank", changes), Run(tmp_path / "run")).train()
    assert not graphs


@pytest.mark.parametrize(
    ("method", "settings", "expected"),
    [
        ("rank", {}, [(8, ())]),
        ("proxy-nca", {}, [(8, ())]),
        ("facility-location", {}, [(8, ())]),
        ("facility-location", {"sub_batches": 2, "sub_batch_share": 1.0}, []),  # several losses in one step
        ("magnet", {}, [(8, ("clusters",))]),
        ("magnet", {"candidates": "index"}, []),
        ("divide-and-conquer", {"learners": 2}, [(4, ()), (4, ()), (8, ())]),
    ],
)
def test_the_losses_of_a_step(method: str, settings: dict[str, object], expected: list[object]) -> None:
    made = make_method(method, **settings)
    made.prepare(classes=4, dim=8, epochs=2)
    assert [(each.dim, each.ids) for each in recordable_losses(made, 8)] == expected
    if made.refresh_every is None:
        assert [(each.dim, each.ids) for each in recordable_losses(with_batches(made, "clusters"), 8)] == expected


@pytest.mark.parametrize("method", ["rank", "magnet", "loss"])
def test_the_losses_of_an_own_step_are_not_known(method: str) -> None:
    class Twice(method_class(method)):  # type: ignore[misc]
        def step(self, embed, batch):  # type: ignore[no-untyped-def]
            return self.loss(embed(batch.inputs), batch.labels) + self.loss(embed(batch.inputs), batch.labels)

    class Once(Twice):
        def step_losses(self, dim: int) -> Iterator[StepLoss]:
            yield StepLoss(self.loss, dim)

    twice, once = Twice(), Once()
    once.loss = nn.Identity()
    assert not list(recordable_losses(twice, 8))
    assert list(recordable_losses(once, 8)) == [StepLoss(once.loss, 8)]
