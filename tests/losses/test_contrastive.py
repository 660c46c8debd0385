"""The contrastive loss: equal to Eq. 4 averaged over each kind of pair."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.batches import random_batch
from reference.contrastive import contrastive_loss as oracle

from nearkin.errors import UserError
from nearkin.losses import ContrastiveLoss, contrastive_loss


@given(st.integers(0, 10_000), st.integers(1, 20), st.integers(1, 5), st.integers(1, 8), st.floats(0.1, 4))
@settings(max_examples=40, deadline=None)
def test_it_is_what_the_equation_says(seed: int, items: int, dim: int, classes: int, margin: float) -> None:
    x, y = random_batch(seed, items, dim, classes)
    unit = x / x.norm(dim=1, keepdim=True)
    for normalize, points in ((False, x), (True, unit)):
        expected = oracle(points.numpy(), y.numpy(), margin)
        assert contrastive_loss(x, y, margin, normalize).item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([0, 0], 0.3**2 / 2),  # a positive pair at 0.3, and no negatives
        ([0, 1], 0.7**2 / 2),  # a negative pair that lacks 0.7, and no positives
        ([0, 0, 1], 0.3**2 / 2 + 0.2**2 / 4),  # of two negative pairs one is far enough
    ],
)
def test_each_kind_is_averaged_over_its_own_pairs(labels: list[int], expected: float) -> None:
    x = torch.tensor([[0.0], [0.3], [1.1]], dtype=torch.float64)[: len(labels)]
    assert contrastive_loss(x, torch.tensor(labels), normalize=False).item() == pytest.approx(expected)


def test_the_module_is_the_function() -> None:
    x, y = random_batch()
    assert torch.equal(ContrastiveLoss(2.0, False)(x, y), contrastive_loss(x, y, 2.0, False))
    assert repr(ContrastiveLoss()) == "ContrastiveLoss(margin=1.0, normalize=True)"


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UserError, match="margin must be positive, not 0"):
        contrastive_loss(*random_batch(), margin=0.0)
    with pytest.raises(UserError, match="margin must be positive"):
        ContrastiveLoss(-1.0)
