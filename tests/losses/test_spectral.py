"""The DSCL loss equals the equations and the golden numbers, and is stable if the embeddings lose rank."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reference.batches import assert_gradient_is, assert_loss_is, golden_files, gradient, random_batch
from reference.spectral import spectral_clustering_loss as oracle

from nearkin.losses import SpectralClusteringLoss, spectral_clustering_loss

SINGLE = float(np.finfo(np.float32).eps)


@pytest.mark.parametrize("file", golden_files("p*.npz"), ids=lambda file: file.stem)
def test_loss_and_gradient_equal_the_golden_ones(file: Path) -> None:
    stored = np.load(file)
    x, y = torch.from_numpy(stored["x"]), torch.from_numpy(stored["labels"])
    assert_loss_is(spectral_clustering_loss, x, y, float(stored["dscl/oracle64_loss"]))
    assert_gradient_is(spectral_clustering_loss, x, y, stored["dscl/oracle64_grad"])


@pytest.mark.parametrize("file", golden_files("dscl_*.npz"), ids=lambda file: file.stem)
def test_it_equals_its_own_golden_files(file: Path) -> None:
    stored = np.load(file)
    x, y = torch.from_numpy(stored["F"]), torch.from_numpy(stored["labels"])
    empty = int(stored["k"]) - len(y.unique())  # the file counts classes without items, each of which adds 1
    if "nearrankdef" in file.stem:  # one singular value is rounding in float32, and a direction in float64
        x = x.double()
        assert spectral_clustering_loss(x, y).item() == pytest.approx(stored["oracle64_loss"] - empty, rel=1e-8)
    else:
        assert_loss_is(spectral_clustering_loss, x, y, float(stored["oracle64_loss"]) - empty)
        assert_gradient_is(spectral_clustering_loss, x, y, stored["oracle64_grad"])


@given(st.integers(0, 10_000), st.integers(1, 20), st.integers(1, 24), st.integers(1, 8), st.integers(1, 24))
@settings(max_examples=60, deadline=None)
def test_it_equals_the_equations(seed: int, items: int, dim: int, classes: int, rank: int) -> None:
    x, y = random_batch(seed, items, dim, classes)
    x = x[:, :rank] @ torch.from_numpy(np.random.default_rng(seed).normal(size=(min(rank, dim), dim)))
    singular = np.linalg.svd(x.numpy(), compute_uv=False)
    # The reference's own rounding error grows with the square of the condition number.
    assume(singular[0] < 1e4 * singular[min(items, dim, rank) - 1])
    loss, expected = oracle(x.numpy(), y.numpy(), eps=1e-13)
    assert spectral_clustering_loss(x, y).item() == pytest.approx(loss, abs=1e-9)
    assert np.abs(gradient(spectral_clustering_loss, x, y).numpy() - expected).max() <= 1e-8 * (
        1 + np.abs(expected).max()
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("smallest", [1.0, 1e-1, 1e-3, 1e-4, 1e-5, 1e-6, 1e-9, 0.0])
def test_every_factorisation_equals_the_equations(smallest: float, dtype: torch.dtype) -> None:
    """One pass, two passes and an SVD, by the condition of the embeddings."""
    x, y = random_batch(items=40, dim=6)
    x[:, -1] = x[:, 0] + smallest * x[:, -1]
    x = x.to(dtype)
    loss, expected = oracle(x.double().numpy(), y.numpy(), torch.finfo(dtype).eps)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-6
    assert spectral_clustering_loss(x, y).item() == pytest.approx(loss, rel=tolerance)
    error = np.abs(gradient(spectral_clustering_loss, x, y).numpy() - expected).max()
    assert error <= tolerance * np.abs(expected).max()


def test_directions_that_are_rounding_in_single_precision_do_not_count() -> None:
    """Duplicated columns that differ by their last digit: kept, the direction would be noise, with a huge gradient."""
    x, y = random_batch(items=32, dim=6)
    x = x.float()
    x[:, -1] = x[:, 0] * (1 + 1e-7)
    loss, expected = oracle(x.numpy(), y.numpy(), SINGLE)
    assert spectral_clustering_loss(x, y).item() == pytest.approx(loss, rel=1e-5)
    assert np.allclose(gradient(spectral_clustering_loss, x, y), expected, atol=1e-5 * np.abs(expected).max())


def test_what_the_minimum_asks_for_depends_on_dimensions_and_classes() -> None:
    """At most min(dim, classes) of the class indicators can be explained."""
    y = torch.arange(4).repeat_interleave(5)
    noise = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
    # dim < classes: never below classes − dim, which is reached if classes are points, even if some coincide.
    points = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])[y]
    assert spectral_clustering_loss(points, y).item() == pytest.approx(2.0)
    assert spectral_clustering_loss(points + 0.1 * noise[:, :2], y).item() > 2.0
    # dim = classes: 0 if classes are linearly independent points, and only then.
    points = torch.eye(4)[y]
    assert spectral_clustering_loss(points, y).item() == pytest.approx(0.0, abs=1e-6)
    assert spectral_clustering_loss(points + 0.1 * noise[:, :4], y).item() > 0.01
    # dim > classes: the other directions may scatter a class.
    assert spectral_clustering_loss(torch.cat([points, 100 * noise], 1), y).item() == pytest.approx(0.0, abs=1e-6)


def test_linear_maps_do_not_matter() -> None:
    x, y = random_batch(items=30, dim=5)
    turned = x @ torch.from_numpy(np.random.default_rng(1).normal(size=(5, 5)))
    assert spectral_clustering_loss(turned, y).item() == pytest.approx(spectral_clustering_loss(x, y).item())


@pytest.mark.parametrize("scale", [0.0, 1e-44, 1e-38, 1e38])
def test_it_stays_finite_at_the_limits_of_single_precision(scale: float) -> None:
    x, y = random_batch(items=20, dim=3)
    x = x.float() / x.abs().max().float() * scale
    assert spectral_clustering_loss(x, y).isfinite()
    assert gradient(spectral_clustering_loss, x, y).isfinite().all()


def test_the_module_equals_the_function() -> None:
    x, y = random_batch()
    assert torch.equal(SpectralClusteringLoss()(x, y), spectral_clustering_loss(x, y))
