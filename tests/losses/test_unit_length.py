"""Scaling to unit length: right first and second derivatives, also beside zero vectors and at extreme lengths."""

from __future__ import annotations

import pytest
import torch
from reference.batches import random_batch
from torch.nn import functional as F

from nearkin.losses.distances import unit_length


def test_first_and_second_derivatives_are_right() -> None:
    x = random_batch(items=4)[0].requires_grad_()
    assert torch.allclose(unit_length(x), F.normalize(x))
    assert torch.autograd.gradcheck(unit_length, x)
    assert torch.autograd.gradgradcheck(unit_length, x)


def test_a_zero_vector_stays_zero_and_gets_no_gradient() -> None:
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    unit = unit_length(x)
    assert unit[0].tolist() == [0.0, 0.0]
    (slope,) = torch.autograd.grad(unit.sum(), x, create_graph=True)
    assert slope[0].tolist() == [0.0, 0.0] and slope[1].any()
    assert torch.autograd.grad(slope.sum(), x)[0].isfinite().all()


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_squares_may_leave_the_range_of_float32(scale: float) -> None:
    assert torch.allclose(unit_length(torch.tensor([[3.0, 4.0]]) * scale), torch.tensor([[0.6, 0.8]]))
