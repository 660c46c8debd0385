"""Micro-batches: the embeddings and gradient of the whole batch, with the memory of one piece."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TINY_GLYPHS
from torch import Tensor, nn

from nearkin.api import make_settings
from nearkin.losses import make_loss
from nearkin.models import EmbeddingModel, ModelSpec
from nearkin.training import Run
from nearkin.training.loop import make_trainer
from nearkin.training.microbatch import MicroBatched, _without_counting, micro_batched

LABELS = torch.arange(20) // 4
INPUTS = torch.randn(20, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def network(*more: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), *more, nn.Tanh(), nn.Linear(16, 4)).double()


def gradients(model: nn.Module, loss: nn.Module, whole: nn.Module) -> list[Tensor]:
    torch.manual_seed(1)
    embeddings = model(INPUTS)
    torch.manual_seed(2)  # for losses that draw random numbers
    parameters = [*whole.parameters(), *loss.parameters()]
    return list(torch.autograd.grad(loss(embeddings, LABELS), parameters))


@pytest.mark.parametrize("size", [1, 6, 20, 64])
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("spectral", {}),
        ("facility-location", {"gamma": 5.0}),
        ("magnet", {}),
        ("rank", {}),
        ("triplet", {}),
        ("margin", {}),
        ("proxy-nca", {"classes": 5, "dim": 4}),
        ("npairs", {}),
    ],
)
def test_pieces_have_the_gradient_of_the_whole_batch(name: str, arguments: dict[str, Any], size: int) -> None:
    model, loss = network(), make_loss(name, **arguments).double()
    expected = gradients(model, loss, model)
    assert any(gradient.abs().max() > 1e-6 for gradient in expected)
    found = gradients(MicroBatched(model, size), loss, model)
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-10, atol=1e-12)


def test_dropout_is_the_same_in_both_runs_of_a_piece() -> None:
    """Otherwise loss and gradient would use different embeddings; checked with finite differences."""
    model = MicroBatched(network(nn.Dropout(0.5)), 6)
    loss = make_loss("spectral")
    weight = model.model[0].weight  # type: ignore[index, union-attr]

    def value() -> Tensor:
        torch.manual_seed(3)
        result: Tensor = loss(model(INPUTS), LABELS)
        return result

    (gradient,) = torch.autograd.grad(value(), weight)
    with torch.no_grad():
        weight[2, 3] += 1e-6
        above = value()
        weight[2, 3] -= 2e-6
        below = value()
    assert gradient[2, 3].item() == pytest.approx(((above - below) / 2e-6).item(), rel=1e-5)


def test_batch_norm_counts_every_piece_once() -> None:
    model, plain = network(nn.BatchNorm1d(16)), network(nn.BatchNorm1d(16))
    MicroBatched(model, 5)(INPUTS).sum().backward()
    for piece in INPUTS.split(5):
        plain(piece)
    for name, expected in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], expected)


def test_pieces_are_alike_so_that_batch_norm_never_sees_a_single_item() -> None:
    sizes = []
    model = network(nn.BatchNorm1d(16))
    model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    MicroBatched(model, 19)(INPUTS)
    assert sizes == [10, 10]


def test_shared_batch_norm_can_be_run_again_without_counting() -> None:
    """SyncBatchNorm, as used on several GPUs; in evaluation mode it runs without one."""
    model = nn.SyncBatchNorm.convert_sync_batchnorm(network(nn.BatchNorm1d(16)))
    (norm,) = [module for module in model.modules() if isinstance(module, nn.SyncBatchNorm)]
    with _without_counting(model):
        assert norm.num_batches_tracked is not None  # it cannot run without it
        assert norm.momentum == 0.0
        norm.num_batches_tracked.add_(1)
    assert (norm.momentum, int(norm.num_batches_tracked)) == (0.1, 0)


def test_pieces_are_made_where_they_are_smaller_and_batch_norm_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        plain, frozen = network(), EmbeddingModel(ModelSpec("linear", dim=2, features=3), freeze_batch_norm=True)
        assert micro_batched(plain, 0, 20) is micro_batched(plain, 20, 20) is micro_batched(plain, 64, 20) is plain
        assert isinstance(micro_batched(plain, 19, 20), MicroBatched)
        micro_batched(frozen, 5, 20)
        micro_batched(network(nn.BatchNorm1d(16)), 64, 20)
        assert not caplog.records
        micro_batched(network(nn.BatchNorm1d(16)), 5, 20)
        assert "batch norm sees only 5 items at a time" in caplog.text


def test_no_forward_pass_of_a_run_is_larger_than_a_piece(tmp_path: Path) -> None:
    """Not only in training steps, but also in evaluation and when the whole space is embedded."""
    changes = {"epochs": 1, "batch_size": 16, "micro_batch": 5, "dim": 8, "device": "cpu"}
    trainer = make_trainer(make_settings(TINY_GLYPHS, "magnet", changes), Run(tmp_path / "run"))
    sizes = []
    trainer.model.backbone.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    trainer.train()
    assert max(sizes) <= 5


def test_backward_holds_the_activations_of_one_piece_at_a_time() -> None:
    held, most = 0, 0

    class Counted(torch.autograd.Function):
        """Returns its input, and counts the items that wait for their backward pass."""

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            nonlocal held, most
            ctx.items = len(x)
            held += len(x)
            most = max(most, held)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            nonlocal held
            held -= ctx.items
            return gradient

    class Layer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            counted: Tensor = Counted.apply(x)  # type: ignore[no-untyped-call]
            return counted

    loss = make_loss("spectral")(MicroBatched(network(Layer()), 5)(INPUTS), LABELS)
    held = most = 0  # checkpoints keep nothing from the first forward pass
    loss.backward()
    assert most == 5
