"""The NRA loss: equal to the equations, to the golden numbers, and finite wherever its input is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.rank import rank_approximation_loss as oracle

from nearkin.errors import UserError
from nearkin.losses import RankApproximationLoss, rank_approximation_loss

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("p*.npz"))


def batch(seed: int = 0, items: int = 12, dim: int = 3, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=(items, dim))), torch.from_numpy(rng.integers(0, classes, items))


def gradient(x: torch.Tensor, y: torch.Tensor, **options: float) -> torch.Tensor:
    x = x.clone().requires_grad_()
    rank_approximation_loss(x, y, **options).backward()
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: file.stem)
@pytest.mark.parametrize(("alpha", "key"), [(4.0, "nra_a4"), (1.0, "nra_a1")])
def test_loss_and_gradient_are_the_golden_ones(file: Path, alpha: float, key: str) -> None:
    stored = np.load(file)
    y = torch.from_numpy(stored["labels"])
    for dtype, loss_tolerance, gradient_tolerance in (
        # α = 1 divides by ε = 1e-4 near rank 0 and so amplifies float32's rounding of the distances.
        (torch.float32, 1e-5, 1e-5 if alpha > 1 else 2e-5),
        (torch.float64, 1e-9, 1e-9),
    ):
        x = torch.from_numpy(stored["x"]).to(dtype)
        expected = float(stored[f"{key}/oracle64_loss"])
        assert rank_approximation_loss(x, y, alpha).item() == pytest.approx(expected, rel=loss_tolerance)
        if f"{key}/oracle64_grad" not in stored or "dups" in file.stem:  # with duplicates it is not differentiable
            continue
        known = stored[f"{key}/oracle64_grad"]
        if known.dtype == np.float32:  # the larger ones are stored rounded
            gradient_tolerance = max(gradient_tolerance, 1e-7)
        error = np.abs(gradient(x, y, alpha=alpha).numpy() - known).max()
        assert error <= gradient_tolerance * np.abs(known).max() + 1e-12  # known zeros carry rounding of 1e-17


@given(st.integers(0, 10_000), st.integers(2, 20), st.integers(1, 5), st.integers(1, 8), st.floats(0.5, 6))
@settings(max_examples=60, deadline=None)
def test_it_is_what_the_equations_say(seed: int, items: int, dim: int, classes: int, alpha: float) -> None:
    x, y = batch(seed, items, dim, classes)
    assert rank_approximation_loss(x, y, alpha).item() == pytest.approx(oracle(x.numpy(), y.numpy(), alpha), rel=1e-9)


@pytest.mark.parametrize("alpha", [0.7, 1.0, 2.5, 4.0])
def test_the_gradient_is_right(alpha: float) -> None:
    x, y = batch(3)
    assert torch.autograd.gradcheck(lambda x: rank_approximation_loss(x, y, alpha), x.requires_grad_())


def test_the_order_of_the_batch_does_not_matter() -> None:
    x, y = batch()
    order = torch.randperm(len(x))
    assert rank_approximation_loss(x[order], y[order]).item() == pytest.approx(rank_approximation_loss(x, y).item())


def test_the_names_of_the_classes_do_not_matter() -> None:
    x, y = batch()
    renamed = torch.tensor([-7, 10**12, 3, 0])[y]
    assert torch.equal(rank_approximation_loss(x, renamed), rank_approximation_loss(x, y))


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1e12])
def test_ranks_do_not_depend_on_the_scale(scale: float) -> None:
    x, y = batch()
    assert rank_approximation_loss(x * scale, y).item() == pytest.approx(rank_approximation_loss(x, y).item())


DEGENERATE = {
    "coincident points": (torch.ones(6, 3), [0, 0, 1, 1, 2, 2]),
    "two places": (torch.tensor([[0.0, 0.0], [1.0, 1.0]]).repeat(3, 1), [0, 0, 1, 1, 2, 2]),
    "one class": (torch.randn(6, 3), [5] * 6),
    "all classes different": (torch.randn(6, 3), list(range(6))),
    "singletons": (torch.randn(6, 3), [0, 0, 0, 1, 2, 3]),
    "zero vectors": (torch.zeros(4, 3), [0, 0, 1, 1]),
    "huge": (torch.randn(6, 3) * 1e18, [0, 0, 1, 1, 2, 2]),
    "tiny": (torch.randn(6, 3) * 1e-18, [0, 0, 1, 1, 2, 2]),
    "a pair": (torch.randn(2, 3), [0, 1]),
    "alone": (torch.randn(1, 3), [0]),
}


@pytest.mark.parametrize("alpha", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("case", DEGENERATE)
def test_every_finite_batch_has_a_finite_loss_and_gradient(case: str, alpha: float) -> None:
    x, labels = DEGENERATE[case]
    y = torch.tensor(labels)
    assert rank_approximation_loss(x, y, alpha).isfinite()
    assert gradient(x, y, alpha=alpha).isfinite().all()


def test_without_anything_to_rank_the_loss_is_zero() -> None:
    assert rank_approximation_loss(torch.ones(4, 2), torch.tensor([0, 0, 1, 1])).item() == 0.0


def test_where_only_nearest_negatives_and_farthest_positives_are_wrong_there_is_no_gradient() -> None:
    """The paper's form, kept and documented: each anchor has the greatest loss there is, and no way to lower it."""
    x, y = torch.tensor([[0.0], [0.1], [5.0]], dtype=torch.float64), torch.tensor([0, 1, 0])
    assert rank_approximation_loss(x, y).item() == pytest.approx(-5 / 3 * np.log(1e-4))  # five terms, each −log ε
    assert not gradient(x, y).any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_single(dtype: torch.dtype) -> None:
    x, y = batch()
    half = x.to(dtype)
    loss = rank_approximation_loss(half, y)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(oracle(half.double().numpy(), y.numpy()), rel=1e-4)
    assert gradient(half, y).dtype == dtype


def test_the_module_is_the_function() -> None:
    x, y = batch()
    assert torch.equal(RankApproximationLoss(2.0, 1e-3)(x, y), rank_approximation_loss(x, y, 2.0, 1e-3))
    assert repr(RankApproximationLoss()) == "RankApproximationLoss(alpha=4.0, eps=0.0001)"


def test_a_large_batch_needs_no_cubic_memory() -> None:
    x = torch.randn(1500, 8, requires_grad=True)  # B³ would be 13 GB
    rank_approximation_loss(x, torch.arange(1500) // 5).backward()


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        (torch.zeros(4), torch.zeros(4, dtype=torch.long), "shape"),
        (torch.zeros(4, 2, dtype=torch.long), torch.zeros(4, dtype=torch.long), "floating point"),
        (torch.zeros(4, 2), torch.zeros(3, dtype=torch.long), "do not match"),
        (torch.zeros(4, 2), torch.zeros(4), "must be integers"),
        (torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), "empty"),
    ],
)
def test_a_wrong_batch_is_refused(x: torch.Tensor, y: torch.Tensor, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        rank_approximation_loss(x, y)


@pytest.mark.parametrize(("alpha", "eps"), [(0.0, 1e-4), (-1.0, 1e-4), (4.0, 0.0)])
def test_settings_that_make_no_sense_are_refused(alpha: float, eps: float) -> None:
    with pytest.raises(UserError, match="must be positive"):
        rank_approximation_loss(torch.zeros(2, 2), torch.tensor([0, 1]), alpha, eps)
