"""The facility-location loss equals the equations and golden losses and gradients; its margin decays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.batches import assert_gradient_is, assert_loss_is, golden_files, gradient, random_batch
from reference.facility_location import facility_location_loss as oracle

from nearkin.errors import UserError
from nearkin.losses import FacilityLocationLoss, facility_location_loss
from nearkin.losses.batch import unchecked

on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
MODES = [(None, "nopam"), ("algorithm-2", "alg2"), ("objective", "fullA")]


@pytest.mark.parametrize("file", golden_files("p*.npz"), ids=lambda file: file.stem)
@pytest.mark.parametrize(("exchange", "key"), MODES)
def test_loss_and_gradient_equal_the_golden_ones(file: Path, exchange: str | None, key: str) -> None:
    stored = np.load(file)
    x, y = torch.from_numpy(stored["x"]), torch.from_numpy(stored["labels"])
    loss = FacilityLocationLoss(float(stored["gamma"]), exchange, normalize=False)
    assert_loss_is(loss, x, y, float(stored[f"fl_oracle64_geometric/loss_{key}"]))
    # Where points coincide, the others' implementations share a gradient among tied minima; we take the first.
    name = "grad_alg2_firsttie" if "dups" in file.stem else f"grad_{key}"
    if name.startswith(f"grad_{key}"):
        assert_gradient_is(loss, x, y, stored[f"fl_oracle64_geometric/{name}"])


@pytest.mark.parametrize("file", golden_files("p*.npz"), ids=lambda file: file.stem)
def test_algorithm_2_equals_the_published_code(file: Path) -> None:
    stored = np.load(file)
    if str(stored["fl_oracle64_geometric/tf_agrees_pam"]) != "True":
        pytest.skip("rounding led the published code to other facilities")
    x, y = torch.from_numpy(stored["x"]), torch.from_numpy(stored["labels"])
    loss = FacilityLocationLoss(float(stored["gamma"]), "algorithm-2", normalize=False)
    assert loss(x, y).item() == pytest.approx(float(stored["fl_tf32_geometric/loss"]), rel=1e-5, abs=2e-5)


@given(st.integers(0, 10_000), st.integers(1, 14), st.integers(1, 8), st.sampled_from([0.0, 1.0, 8.0]))
@settings(max_examples=20, deadline=None)
def test_it_equals_the_equations(seed: int, items: int, classes: int, gamma: float) -> None:
    x, y = random_batch(seed, items, dim=3, classes=classes)
    for exchange in (None, "objective", "algorithm-2", "all"):
        expected = oracle(x.numpy(), y.numpy(), gamma, exchange)
        found = facility_location_loss(x, y, gamma, exchange, normalize=False).item()
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_the_clustering_by_labels_has_no_loss_without_margin() -> None:
    x = torch.eye(4).repeat_interleave(3, dim=0) * 10 + 0.1 * torch.randn(12, 4)
    y = torch.arange(4).repeat_interleave(3)
    assert facility_location_loss(x, y, gamma=0.0, normalize=False).item() == pytest.approx(0.0, abs=1e-6)


def test_the_loss_is_zero_for_one_class_and_for_all_different_classes() -> None:
    x, _ = random_batch()
    for y in (torch.zeros(12, dtype=torch.long), torch.arange(12)):
        assert facility_location_loss(x, y).item() == pytest.approx(0.0, abs=1e-12)
        assert gradient(facility_location_loss, x, y).abs().max() < 1e-12


def test_a_step_along_the_gradient_lowers_the_loss() -> None:
    x, y = random_batch(5, items=24, dim=4, classes=6)
    before = facility_location_loss(x, y)
    after = facility_location_loss(x - 1e-3 * gradient(facility_location_loss, x, y), y)
    assert after < before


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_single_precision_finds_the_same_facilities_at_every_scale(scale: float) -> None:
    x, y = random_batch(5, items=60, dim=4, classes=15)
    expected = facility_location_loss(x, y, gamma=1.0, normalize=False).item()
    found = facility_location_loss((x * scale).float(), y, gamma=scale, normalize=False).item()
    assert found == pytest.approx(expected * scale, rel=1e-5)


def test_gamma_decays_and_its_current_value_is_saved() -> None:
    loss = FacilityLocationLoss(gamma=2.0)
    for _ in range(3):
        loss.decay(0.94)
    assert loss.gamma == pytest.approx(2.0 * 0.94**3)
    other = FacilityLocationLoss(gamma=2.0)
    other.load_state_dict(loss.state_dict())
    assert other.gamma == loss.gamma
    with pytest.raises(UserError, match=r"rate must be > 0 and <= 1, got 1\.5"):
        loss.decay(1.5)


def test_gamma_may_be_a_tensor() -> None:
    points, labels = random_batch(0, items=12, dim=3)
    expected = facility_location_loss(points, labels, gamma=2.0)
    assert facility_location_loss(points, labels, gamma=torch.tensor(2.0)).item() == expected.item()
    with unchecked():
        assert facility_location_loss(points, labels, gamma=torch.tensor(2)).item() == expected.item()
    with pytest.raises(UserError, match="gamma must be a finite number >= 0, got -1"):
        facility_location_loss(points, labels, gamma=torch.tensor(-1.0))


def test_stochastic_greedy_follows_the_generator_of_torch() -> None:
    x, y = random_batch(0, items=40, dim=4, classes=10)
    loss = FacilityLocationLoss(stochastic=0.5, exchange=None)

    def drawn(seed: int) -> float:
        torch.manual_seed(seed)
        return float(loss(x, y))

    assert drawn(0) == drawn(0)
    assert len({drawn(seed) for seed in range(5)}) > 1


def test_distances_that_overflow_are_named() -> None:
    x, y = random_batch()
    with pytest.raises(UserError, match="scale the points down"):
        facility_location_loss(x * 1e160, y, normalize=False)


def test_it_works_in_a_compiled_step() -> None:
    x, y = random_batch()
    loss = FacilityLocationLoss()
    compiled = torch.compile(lambda x, y: loss(2 * x, y) + 1, backend="eager")
    assert compiled(x, y).item() == pytest.approx(loss(x, y).item() + 1)


@pytest.mark.parametrize("margin", ["ami", "ari"])
def test_other_margins_give_other_losses(margin: str) -> None:
    x, y = random_batch(1, items=24, dim=4, classes=6)
    assert facility_location_loss(x, y, 5.0, margin=margin) != facility_location_loss(x, y, 5.0)


@pytest.mark.parametrize("settings", [{"gamma": -1.0}, {"exchange": "swap"}, {"margin": "f1"}, {"stochastic": 0.0}])
def test_invalid_settings_are_refused_immediately(settings: dict[str, object]) -> None:
    with pytest.raises(UserError, match=next(iter(settings))):
        FacilityLocationLoss(**settings)


@on_cuda
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_the_gpu_finds_the_facilities_that_the_cpu_finds(seed: int, normalize: bool) -> None:
    x = torch.randn(120, 60, generator=torch.Generator().manual_seed(seed))
    x[:5], x[5] = x[5:10].clone(), 0.0  # coincident points, and one of length 0
    y = torch.arange(120) % 32
    loss = FacilityLocationLoss(normalize=normalize)
    assert loss(x.cuda(), y.cuda()).item() == pytest.approx(loss(x, y).item(), rel=1e-6)
    # Other facilities would change some entries of the gradient by about 1.
    assert torch.allclose(gradient(loss, x.cuda(), y.cuda()).cpu(), gradient(loss, x, y), atol=1e-5)


@on_cuda
@pytest.mark.parametrize("broken", [float("nan"), float("inf"), 3e38])
def test_on_a_gpu_a_batch_that_is_not_finite_has_the_loss_nan_unless_it_is_checked(broken: float) -> None:
    x, y = torch.randn(16, 4).cuda(), torch.arange(16).cuda() % 4
    x[3] = broken
    x[4] = -broken
    with unchecked():
        assert facility_location_loss(x, y, normalize=False).isnan()
    with pytest.raises(UserError, match=r"NaN or infinite|scale the points down"):
        facility_location_loss(x, y, normalize=False)
