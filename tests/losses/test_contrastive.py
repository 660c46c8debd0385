"""The contrastive loss equals Eq. 4, averaged over each kind of pair, and the form of pytorch-metric-learning."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning import losses
from reference.batches import gradient, random_batch
from reference.contrastive import contrastive_loss as oracle

from nearkin.errors import UserError
from nearkin.losses import ContrastiveLoss, contrastive_loss


@given(st.integers(0, 10_000), st.integers(1, 20), st.integers(1, 5), st.integers(1, 8), st.floats(0.1, 4))
@settings(max_examples=40, deadline=None)
def test_it_equals_the_equation(seed: int, items: int, dim: int, classes: int, margin: float) -> None:
    x, y = random_batch(seed, items, dim, classes)
    unit = x / x.norm(dim=1, keepdim=True)
    for normalize, points in ((False, x), (True, unit)):
        for squared in (False, True):
            expected = oracle(points.numpy(), y.numpy(), margin, squared)
            found = contrastive_loss(x, y, margin, normalize, squared).item()
            assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_without_squares_it_equals_pytorch_metric_learning() -> None:
    x, y = random_batch(items=30, dim=8)
    theirs, ours = losses.ContrastiveLoss(neg_margin=0.7), ContrastiveLoss(margin=0.7)
    assert ours(x, y).item() == pytest.approx(theirs(x, y).item())
    assert torch.allclose(gradient(ours, x, y), gradient(theirs, x, y))


@pytest.mark.parametrize(
    ("labels", "squared", "expected"),
    [
        ([0, 0], True, 0.3**2 / 2),  # a positive pair at 0.3, and no negatives
        ([0, 1], True, 0.7**2 / 2),  # a negative pair that lacks 0.7, and no positives
        ([0, 0, 1], True, 0.3**2 / 2 + 0.2**2 / 4),  # of two negative pairs one is far enough
        ([0, 0], False, 0.3),
        ([0, 1], False, 0.7),
        ([0, 0, 1], False, 0.3 + 0.2),  # which does not count
    ],
)
def test_each_kind_is_averaged_over_its_own_pairs(labels: list[int], squared: bool, expected: float) -> None:
    x = torch.tensor([[0.0], [0.3], [1.1]], dtype=torch.float64)[: len(labels)]
    assert contrastive_loss(x, labels, normalize=False, squared=squared).item() == pytest.approx(expected)


def test_the_module_equals_the_function() -> None:
    x, y = random_batch()
    assert torch.equal(ContrastiveLoss(2.0, False, True)(x, y), contrastive_loss(x, y, 2.0, False, True))
    assert repr(ContrastiveLoss()) == "ContrastiveLoss(margin=1.0, normalize=True, squared=False)"


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(UserError, match="margin must be a finite number > 0, got 0"):
        contrastive_loss(*random_batch(), margin=0.0)
    with pytest.raises(UserError, match="margin must be a finite number > 0"):
        ContrastiveLoss(-1.0)
