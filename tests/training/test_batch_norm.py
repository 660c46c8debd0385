"""Methods whose batches are not a sample of the data embed with batch norm statistics of random items."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nearkin.api import make_settings
from nearkin.training import Run, loop
from nearkin.training.batch_norm import estimate_statistics, learning_norms
from nearkin.training.loop import Trainer, make_trainer

QUICK: dict[str, Any] = {
    "backbone": "small",
    "image_size": 16,
    "dim": 4,
    "epochs": 2,
    "batch_size": 16,
    "evaluate_every": 0,
    "device": "cpu",
}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(256, size=(64, 16, 16, 1), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", images=pixels, labels=np.arange(64) // 8)
    return tmp_path / "images.npz"


def statistics(trainer: Trainer) -> list[Tensor]:
    return [buffer.clone() for name, buffer in trainer.model.named_buffers() if "running" in name]


def test_statistics_are_averages_over_the_batches_without_dropout() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(3), nn.Dropout(0.5))
    norm = model[1]
    assert isinstance(norm, nn.BatchNorm1d)
    norm.running_mean = torch.full((3,), 100.0)
    batches = [torch.randn(5, 3) for _ in range(4)]
    estimate_statistics(model, learning_norms(model), batches)
    assert torch.allclose(norm.running_mean, torch.stack(batches).mean(dim=(0, 1)), atol=1e-6)
    assert torch.allclose(norm.running_var, torch.stack([batch.var(0) for batch in batches]).mean(0))  # type: ignore[arg-type]
    assert norm.momentum == 0.1 and all(module.training for module in model)
    norm.eval()
    assert learning_norms(model) == []


@pytest.mark.parametrize(("method", "estimated"), [("magnet", True), ("triplet", False)])
def test_the_kept_model_has_them_if_the_batches_are_not_a_sample(
    tmp_path: Path, images: Path, method: str, estimated: bool
) -> None:
    trainer = make_trainer(make_settings(images, method, QUICK), Run(tmp_path / "run"))
    trainer.train()
    before = statistics(trainer)
    trainer.model.train()
    for norm in learning_norms(trainer.model):
        norm.reset_running_stats()
    trainer.estimated_at = -1
    trainer._estimate_batch_norm()  # the same again, as it depends on weights and position only
    assert all(map(torch.equal, statistics(trainer), before)) == estimated


def test_a_resumed_run_has_the_same_statistics(tmp_path: Path, images: Path) -> None:
    whole = loop.train(make_settings(images, "magnet", QUICK), tmp_path / "whole")
    loop.train(make_settings(images, "magnet", QUICK | {"stop_after": 1}), tmp_path / "cut")
    resumed = loop.resume(tmp_path / "cut", epochs=2)
    files = [(run.model_folder / "model.safetensors").read_bytes() for run in (whole, resumed)]
    assert files[0] == files[1]
