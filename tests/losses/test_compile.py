"""torch.compile makes one graph of every nearkin loss, and can run those of pytorch-metric-learning."""

from __future__ import annotations

import pytest
import torch
from losses.test_every_loss import LOSSES, SAMPLED
from reference.batches import random_batch
from torch import nn

from nearkin.losses import MagnetLoss, MarginLoss, PMLLoss, make_loss


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.compiler.reset()


def value_and_gradient(loss: nn.Module, *batch: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    x = batch[0].clone().requires_grad_()
    value = loss(x, *batch[1:], **more)
    value.backward()
    assert x.grad is not None
    return torch.cat([value.detach()[None], x.grad.flatten()])


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_is_one_graph(name: str) -> None:
    x, y = random_batch()
    torch.manual_seed(0)
    loss = LOSSES[name]().double()
    backend = "eager" if ", " in name else "aot_eager"  # which also traces backward and takes longer
    found = value_and_gradient(torch.compile(loss, fullgraph=True, backend=backend), x, y)
    if name in SAMPLED:  # draws other negatives
        assert found.isfinite().all() and found.any()
    else:
        assert torch.allclose(found, value_and_gradient(loss, x, y))


OVER_PAIRS = ["contrastive", "lifted", "margin", "nca", "npairs", "rank", "triplet"]


@pytest.mark.parametrize("name", OVER_PAIRS)
@pytest.mark.parametrize("lists", [3, 4])
def test_given_pairs_and_references_are_in_the_graph(name: str, lists: int) -> None:
    (x, y), (references, of_references) = random_batch(), random_batch(1)
    indices = tuple(torch.arange(lists)[:, None] * torch.tensor([1, 2]) % 12)
    loss = make_loss(name).double()
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    batch = x, y, indices, references, of_references
    assert torch.allclose(value_and_gradient(compiled, *batch), value_and_gradient(loss, *batch))


def test_clusters_are_in_the_graph() -> None:
    x, clusters = random_batch(classes=6)
    compiled = torch.compile(MagnetLoss(), fullgraph=True, backend="eager")
    found = value_and_gradient(compiled, x, clusters // 2, clusters=clusters)
    assert torch.allclose(found, value_and_gradient(MagnetLoss(), x, clusters // 2, clusters=clusters))


def test_a_compiled_margin_loss_draws_one_negative_for_each_positive_pair() -> None:
    """All points are at two positions, so that every draw has the same loss."""
    x, y = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).repeat_interleave(4, dim=0).double(), torch.arange(8) // 4
    loss = MarginLoss(beta=0.1, nu=0.1).double()
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    assert compiled(x, y).item() == pytest.approx(loss(x, y).item())


def test_a_loss_of_pytorch_metric_learning_runs_in_several_graphs() -> None:
    x, y = random_batch()
    loss = PMLLoss("ContrastiveLoss")
    compiled = torch.compile(loss, backend="eager")
    assert torch.allclose(value_and_gradient(compiled, x, y), value_and_gradient(loss, x, y))
