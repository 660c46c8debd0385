"""torch.compile is undone: the backbone may be the user's own module."""

from __future__ import annotations

from pathlib import Path

import torch
from conftest import TINY_GLYPHS
from torch import nn

from nearkin.api import make_settings
from nearkin.models import EmbeddingModel, ModelSpec
from nearkin.training import Run
from nearkin.training.compiling import compile_backbone
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
