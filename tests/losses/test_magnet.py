"""Magnet equals both readings of its equations and the golden numbers, for clusters of any number and size."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.batches import assert_gradient_is, assert_loss_is, golden_files, gradient, random_batch
from reference.magnet import magnet_losses as oracle
from torch import Tensor

from nearkin.errors import UserError
from nearkin.losses import MagnetLoss, magnet_loss
from nearkin.losses.magnet import HINGES, VARIANCES


@pytest.mark.parametrize("file", golden_files("magnet_*.npz"), ids=lambda file: file.stem)
@pytest.mark.parametrize(("variance", "key"), [("eq4", "oracle64_eq4_sigma2"), ("eq5", "oracle64_eq5_literal")])
def test_loss_and_gradient_equal_the_golden_ones(file: Path, variance: str, key: str) -> None:
    stored = np.load(file)
    clusters = torch.arange(int(stored["M"])).repeat_interleave(int(stored["D"]))
    x, y = torch.from_numpy(stored["x"]), torch.from_numpy(stored["cluster_classes"])[clusters]
    magnet = MagnetLoss(float(stored["alpha"]), variance)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return magnet(x, y, clusters=clusters)

    assert_loss_is(loss, x, y, float(stored[f"{key}/loss"]))
    assert_gradient_is(loss, x, y, stored[f"{key}/grad"])
    single = magnet_loss(x.double(), y, clusters, float(stored["alpha"]), variance, reduction="none")
    assert np.allclose(single, stored[f"{key}/per_example"], rtol=1e-9)


@given(st.integers(0, 10_000), st.integers(3, 24), st.integers(1, 5), st.integers(1, 8), st.floats(-1, 4))
@settings(max_examples=60, deadline=None)
def test_it_equals_the_equations(seed: int, items: int, dim: int, clusters: int, alpha: float) -> None:
    x, cluster = random_batch(seed, items, dim, clusters)
    y = cluster % 3
    for variance in VARIANCES:
        if len(cluster.unique()) < items:  # else every variance is 0
            expected = oracle(x.numpy(), y.numpy(), cluster.numpy(), alpha, variance)
            found = magnet_loss(x, y, 10**12 - 7 * cluster, alpha, variance, reduction="none")
            assert found.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)
            assert magnet_loss(x, y, cluster, alpha, variance).item() == pytest.approx(np.mean(expected), rel=1e-9)


def test_the_gradient_goes_through_means_and_variance() -> None:
    x, cluster = random_batch(items=16, dim=3, classes=6)
    for variance in VARIANCES:
        magnet = MagnetLoss(variance=variance)
        assert torch.autograd.gradcheck(lambda x, f=magnet: f(x, cluster // 2, clusters=cluster), x.requires_grad_())


@given(st.integers(0, 10_000), st.integers(3, 24), st.integers(1, 5), st.integers(0, 6), st.sampled_from(HINGES))
@settings(max_examples=30, deadline=None)
def test_clusters_of_the_index_that_are_not_in_the_batch_are_further_impostors(
    seed: int, items: int, dim: int, absent: int, hinge: str
) -> None:
    x, cluster = random_batch(seed, items, dim, classes=5)
    if len(cluster.unique()) == items:  # every variance is 0
        return
    centroids, classes = torch.randn(5 + absent, dim, dtype=torch.float64), torch.arange(5 + absent) % 3
    index = {number: (centroids[number].numpy(), int(classes[number])) for number in range(5 + absent)}
    form = {"alpha": -1.0, "hinge": hinge, "scaling": 3.0}
    expected = oracle(x.numpy(), classes[cluster].numpy(), cluster.numpy(), **form, index=index)
    magnet = MagnetLoss(reduction="none", **form)
    found = magnet(x, classes[cluster], clusters=cluster, centroids=centroids, centroid_labels=classes)
    assert found.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_the_gradient_of_a_soft_hinge_with_an_index_reaches_all_but_the_centroids() -> None:
    x, cluster = random_batch(items=16, dim=3, classes=6)
    centroids = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
    magnet, more = MagnetLoss(hinge="soft"), {"centroids": centroids, "centroid_labels": torch.arange(8) // 2}

    def loss(x: Tensor) -> Tensor:
        return magnet(x, cluster // 2, clusters=cluster, **more)

    assert torch.autograd.gradcheck(loss, x.requires_grad_())
    loss(x).backward()
    assert centroids.grad is None
    apart, y = torch.tensor([[0.0], [1.0], [8.0], [9.0]]), torch.tensor([0, 0, 1, 1])
    assert not gradient(magnet_loss, apart, y).any()
    assert gradient(partial(magnet_loss, hinge="soft"), apart, y).any()


def test_an_index_that_does_not_fit_is_refused() -> None:
    x, y = torch.randn(4, 2), torch.tensor([0, 0, 1, 1])
    with pytest.raises(UserError, match=r"shape \(index, 2\), got \(2, 3\)"):
        magnet_loss(x, y, centroids=torch.randn(2, 3), centroid_labels=y[:2])
    with pytest.raises(UserError, match="pass centroid_labels"):
        magnet_loss(x, y, centroids=torch.randn(2, 2))
    with pytest.raises(UserError, match="rows of centroids, 0…1, got 6"):
        magnet_loss(x, y, y + 6, centroids=torch.randn(2, 2), centroid_labels=torch.tensor([0, 1]))


def test_without_clusters_each_class_is_one() -> None:
    x, y = random_batch()
    assert torch.equal(magnet_loss(x, y), magnet_loss(x, y, clusters=y))


def test_examples_on_their_means_have_the_loss_of_the_limit() -> None:
    apart, y = torch.tensor([[0.3], [0.3], [0.7], [0.7]]), torch.tensor([0, 0, 1, 1])
    assert magnet_loss(apart, y).item() == 0.0
    together = torch.full((6, 1), 0.3)
    y = torch.tensor([0, 0, 1, 1, 2, 2])
    assert magnet_loss(together, y).item() == pytest.approx(1 + np.log(2))
    assert not gradient(magnet_loss, together, y).any()


def test_a_cluster_of_two_classes_is_refused() -> None:
    with pytest.raises(UserError, match="cluster 7 contains items of two classes"):
        magnet_loss(torch.randn(3, 2), torch.tensor([0, 0, 1]), torch.tensor([5, 7, 7]))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"alpha": float("nan")}, "alpha must be a finite number"),
        ({"variance": "eq6"}, "variance 'eq6' is unknown"),
        ({"reduction": "sum"}, "reduction 'sum' is unknown"),
        ({"scaling": 0.0}, "scaling must be a finite number > 0, got 0.0"),
        ({"hinge": "smooth"}, "hinge 'smooth' is unknown"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, object], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        MagnetLoss(**settings)  # type: ignore[arg-type]


def test_a_shift_of_all_points_does_not_matter() -> None:
    x, y = random_batch()
    assert magnet_loss(x + 1e4, y).item() == pytest.approx(magnet_loss(x, y).item(), rel=1e-9)
