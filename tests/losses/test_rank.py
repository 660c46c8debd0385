"""The NRA loss equals the equations and the golden numbers, and is finite for finite input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.batches import assert_gradient_is, assert_loss_is, golden_files, gradient, random_batch
from reference.rank import gradient_everywhere_loss as everywhere_oracle
from reference.rank import rank_approximation_loss as oracle

from nearkin.errors import UserError
from nearkin.losses import RankApproximationLoss, rank_approximation_loss


@pytest.mark.parametrize("file", golden_files("p*.npz"), ids=lambda file: file.stem)
@pytest.mark.parametrize(("alpha", "key"), [(4.0, "nra_a4"), (1.0, "nra_a1")])
def test_loss_and_gradient_equal_the_golden_ones(file: Path, alpha: float, key: str) -> None:
    stored = np.load(file)
    x, y = torch.from_numpy(stored["x"]), torch.from_numpy(stored["labels"])
    loss = RankApproximationLoss(alpha)
    assert_loss_is(loss, x, y, float(stored[f"{key}/oracle64_loss"]))
    if f"{key}/oracle64_grad" in stored and "dups" not in file.stem:  # with duplicates it is not differentiable
        assert_gradient_is(loss, x, y, stored[f"{key}/oracle64_grad"])


@given(st.integers(0, 10_000), st.integers(2, 20), st.integers(1, 5), st.integers(1, 8), st.floats(0.5, 6))
@settings(max_examples=60, deadline=None)
def test_it_equals_the_equations(seed: int, items: int, dim: int, classes: int, alpha: float) -> None:
    x, y = random_batch(seed, items, dim, classes)
    assert rank_approximation_loss(x, y, alpha).item() == pytest.approx(oracle(x.numpy(), y.numpy(), alpha), rel=1e-9)


@given(st.integers(0, 10_000), st.integers(2, 20), st.integers(1, 5), st.integers(1, 8), st.floats(0.5, 6))
@settings(max_examples=40, deadline=None)
def test_gradient_everywhere_equals_the_documented_variant(
    seed: int, items: int, dim: int, classes: int, alpha: float
) -> None:
    x, y = random_batch(seed, items, dim, classes)
    expected = everywhere_oracle(x.numpy(), y.numpy(), alpha)
    assert rank_approximation_loss(x, y, alpha, gradient_everywhere=True).item() == pytest.approx(expected, rel=1e-9)


def test_gradient_everywhere_changes_nothing_where_all_ranks_are_above_a_quarter() -> None:
    x, y = torch.tensor([[0.0], [1.0], [5.0], [6.0]], dtype=torch.float64), torch.tensor([0, 0, 1, 1])
    assert torch.equal(rank_approximation_loss(x, y, gradient_everywhere=True), rank_approximation_loss(x, y))


def test_without_anything_to_rank_the_loss_is_zero() -> None:
    assert rank_approximation_loss(torch.ones(4, 2), torch.tensor([0, 0, 1, 1])).item() == 0.0


def test_there_is_no_gradient_if_only_the_nearest_and_farthest_items_are_wrong() -> None:
    """Documented behaviour of the paper's form: each anchor has the largest possible loss, but no gradient."""
    x, y = torch.tensor([[0.0], [0.1], [5.0]], dtype=torch.float64), torch.tensor([0, 1, 0])
    assert rank_approximation_loss(x, y).item() == pytest.approx(-5 / 3 * np.log(1e-4))  # five terms, each −log ε
    assert not gradient(rank_approximation_loss, x, y).any()


def test_there_is_a_gradient_where_the_paper_has_none() -> None:
    x, y = torch.tensor([[0.0], [1.0], [3.0], [8.0]], dtype=torch.float64), torch.tensor([0, 1, 2, 0])
    assert not gradient(rank_approximation_loss, x, y).any()
    downhill = -gradient(RankApproximationLoss(gradient_everywhere=True), x, y).flatten()
    assert downhill[0] > 0 > downhill[3]  # the positive pair, each other's farthest, closes up


def test_the_module_equals_the_function() -> None:
    x, y = random_batch()
    assert torch.equal(RankApproximationLoss(2.0, 1e-3, True)(x, y), rank_approximation_loss(x, y, 2.0, 1e-3, True))
    assert repr(RankApproximationLoss()) == "RankApproximationLoss(alpha=4.0, eps=0.0001, gradient_everywhere=False)"


@pytest.mark.parametrize(("alpha", "eps"), [(0.0, 1e-4), (-1.0, 1e-4), (4.0, 0.0)])
def test_invalid_settings_are_refused(alpha: float, eps: float) -> None:
    with pytest.raises(UserError, match="must be a finite number > 0"):
        rank_approximation_loss(torch.zeros(2, 2), torch.tensor([0, 1]), alpha, eps)
