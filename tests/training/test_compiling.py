"""Compiled backbones and recorded losses are undone: both may be the user's own modules."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import TINY_GLYPHS
from torch import Tensor, nn

from nearkin.api import make_settings
from nearkin.errors import UserError
from nearkin.losses import RankApproximationLoss, SpectralClusteringLoss
from nearkin.methods import LossModule, make_method
from nearkin.methods.base import StepLoss
from nearkin.methods.batches import with_batches
from nearkin.models import EmbeddingModel, ModelSpec
from nearkin.training import Run, compiling
from nearkin.training.compiling import compile_backbone, record_losses
from nearkin.training.loop import make_trainer


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


def test_only_losses_whose_changes_are_known_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def recorded(loss: nn.Module, batch_size: int, dim: int, _: torch.device, **more: Tensor) -> nn.Module:
        if isinstance(loss, SpectralClusteringLoss):
            raise UserError("it reads data")
        shapes.append((batch_size, dim, {name: tuple(example.shape) for name, example in more.items()}))
        return nn.Identity()

    shapes: list[object] = []
    monkeypatch.setattr(compiling, "graphed", recorded)
    losses = [RankApproximationLoss(), OwnLoss(), SpectralClusteringLoss(), RankApproximationLoss()]
    compiled = RankApproximationLoss()
    compiled.compile(backend="eager")
    own = compiled._compiled_call_impl
    found = [StepLoss(loss, 8) for loss in (*losses[:3], compiled)] + [StepLoss(losses[3], 4, ("clusters",))]
    undo = record_losses(found, 16, torch.device("cuda"))
    assert shapes == [(16, 8, {}), (16, 4, {"clusters": (16,)})]
    assert [is_compiled(loss) for loss in losses] == [True, False, False, True]
    assert not losses[0].state_dict()
    undo()
    assert not any(is_compiled(loss) for loss in losses) and compiled._compiled_call_impl is own


@pytest.mark.parametrize(
    ("method", "settings", "expected"),
    [
        ("rank", {}, [(8, ())]),
        ("proxy-nca", {}, [(8, ())]),
        ("facility-location", {}, [(8, ())]),
        ("facility-location", {"sub_batches": 2, "sub_batch_share": 1.0}, []),  # the loss of each in one step
        ("magnet", {}, [(8, ("clusters",))]),
        ("magnet", {"candidates": "index"}, []),
        ("divide-and-conquer", {"learners": 2}, [(4, ()), (4, ()), (8, ())]),
    ],
)
def test_the_losses_of_a_step(method: str, settings: dict[str, object], expected: list[object]) -> None:
    made = make_method(method, **settings)
    made.prepare(classes=4, dim=8, epochs=2)
    assert [(each.dim, each.ids) for each in made.step_losses(8)] == expected
    if made.refresh_every is None:
        assert [(each.dim, each.ids) for each in with_batches(made, "clusters").step_losses(8)] == expected


def test_the_losses_of_an_own_step_are_not_known() -> None:
    class Twice(type(make_method("rank"))):  # type: ignore[misc]
        def step(self, embed, batch):  # type: ignore[no-untyped-def]
            return self.loss(embed(batch.inputs), batch.labels) + self.loss(embed(batch.inputs), batch.labels)

    assert not list(Twice().step_losses(8))
    loss = nn.Identity()
    assert [each.loss for each in LossModule.of(loss).step_losses(8)] == [loss]
