"""Pieces of a batch: the whole batch's embeddings and gradient, the memory of one piece."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nearkin.losses import make_loss
from nearkin.training.microbatch import InPieces, sees_pieces

LABELS = torch.arange(20) // 4
INPUTS = torch.randn(20, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def network(*more: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), *more, nn.Tanh(), nn.Linear(16, 4)).double()


def gradients(model: nn.Module, loss: nn.Module, whole: nn.Module) -> list[Tensor]:
    torch.manual_seed(1)
    embeddings = model(INPUTS)
    torch.manual_seed(2)  # for losses that draw
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
    found = gradients(InPieces(model, size), loss, model)
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-10, atol=1e-12)


def test_dropout_is_the_same_in_both_runs_of_a_piece() -> None:
    """Otherwise the gradient would belong to other embeddings than the loss; found by finite differences."""
    model = InPieces(network(nn.Dropout(0.5)), 6)
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
    InPieces(model, 5)(INPUTS).sum().backward()
    for piece in INPUTS.split(5):
        plain(piece)
    for name, expected in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], expected)


def test_it_is_known_whether_a_model_sees_pieces() -> None:
    model = network(nn.BatchNorm1d(16))
    assert sees_pieces(model)
    assert not sees_pieces(model.eval())
    assert not sees_pieces(network())


def test_backward_holds_the_activations_of_one_piece_at_a_time() -> None:
    held, most = 0, 0

    class Counted(torch.autograd.Function):
        """Passes on its input, and counts how many items wait for their backward pass."""

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

    loss = make_loss("spectral")(InPieces(network(Layer()), 5)(INPUTS), LABELS)
    held = most = 0  # checkpoints keep nothing of the first run
    loss.backward()
    assert most == 5
