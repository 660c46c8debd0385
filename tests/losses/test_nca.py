"""NCA equals the equation and pytorch-metric-learning, and is correct where exponentials would underflow."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning import distances, losses
from reference.batches import gradient, random_batch
from reference.nca import nca_loss as oracle

from nearkin.errors import UserError
from nearkin.losses import NCALoss, nca_loss
from nearkin.losses.distances import unit_length


@given(st.integers(0, 10_000), st.integers(1, 20), st.integers(1, 5), st.integers(1, 8), st.floats(0.1, 4))
@settings(max_examples=40, deadline=None)
def test_it_equals_the_equation(seed: int, items: int, dim: int, classes: int, scale: float) -> None:
    x, y = random_batch(seed, items, dim, classes)
    expected = oracle(x.numpy(), y.numpy(), scale)
    assert nca_loss(x, y, scale).item() == pytest.approx(expected, rel=1e-9, abs=1e-12)
    normalized = oracle(unit_length(x).numpy(), y.numpy(), scale)
    assert nca_loss(x, y, scale, normalize=True).item() == pytest.approx(normalized, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("normalize", [False, True])
def test_it_equals_pytorch_metric_learning(normalize: bool) -> None:
    x, y = random_batch(items=40, dim=8)
    distance = distances.LpDistance(power=2, normalize_embeddings=normalize)
    theirs = losses.NCALoss(softmax_scale=2.0, distance=distance)
    ours = NCALoss(scale=2.0, normalize=normalize)
    assert ours(x, y).item() == pytest.approx(theirs(x, y).item())
    assert torch.allclose(gradient(ours, x, y), gradient(theirs, x, y))


def test_far_positives_still_have_a_loss() -> None:
    """e^(−10⁴) is 0 in every precision, but its logarithm is not."""
    x, y = torch.tensor([[0.0], [1.0], [100.0]]), torch.tensor([0, 1, 0])
    assert nca_loss(x, y).item() == pytest.approx((100**2 - 1 + 100**2 - 99**2) / 2)
    assert (gradient(nca_loss, x, y)[[0, 2]].abs() > 1).all()


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2]])
def test_with_one_class_or_no_pair_the_loss_is_zero(labels: list[int]) -> None:
    x, y = torch.randn(3, 2), torch.tensor(labels)
    assert nca_loss(x, y).item() == pytest.approx(0.0, abs=1e-6)
    assert gradient(nca_loss, x, y).abs().max() < 1e-6


def test_an_invalid_scale_is_refused() -> None:
    with pytest.raises(UserError, match="scale must be a finite number > 0"):
        NCALoss(scale=0.0)
