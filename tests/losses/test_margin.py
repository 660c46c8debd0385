"""The margin loss and its sampler equal their equations and the golden numbers, and are always finite."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.losses import MarginLoss as OtherMarginLoss
from reference.batches import DEGENERATE, assert_gradient_is, assert_loss_is, golden_files, gradient, random_batch
from reference.margin import margin_loss as oracle
from reference.margin import negative_probabilities as probability_oracle
from torch import Tensor

from nearkin.errors import UserError
from nearkin.losses import MarginLoss, distance_weighted_sampling, margin_loss
from nearkin.losses.distances import pairwise_squared_distances
from nearkin.losses.pairs import Triplets, compared
from nearkin.losses.sampled_negatives import negative_probabilities

GOLDEN_BETA = torch.tensor(1.2, dtype=torch.float64)


def every_triplet(y: Tensor) -> Triplets:
    same = y[:, None] == y[None, :]
    positive = same & ~torch.eye(len(y), dtype=torch.bool)
    anchor, partner, negative = (positive[:, :, None] & ~same[:, None, :]).nonzero(as_tuple=True)
    return anchor, partner, negative


def unit_batch(seed: int = 0, items: int = 12, dim: int = 3, classes: int = 4) -> tuple[Tensor, Tensor]:
    x, y = random_batch(seed, items, dim, classes)
    return x / x.norm(dim=1, keepdim=True), y


def files_with(key: str) -> list[Path]:
    return [file for file in golden_files("p*.npz") if key in np.load(file)]


@pytest.mark.parametrize("file", files_with("margin_compvis/triplets"), ids=lambda file: file.stem)
def test_loss_and_gradient_equal_the_golden_ones(file: Path) -> None:
    stored = np.load(file)
    x, y = torch.from_numpy(stored["x"]), torch.from_numpy(stored["labels"])
    a, p, n = torch.from_numpy(stored["margin_compvis/triplets"]).long().T

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return margin_loss(x, y, (a, p, n), GOLDEN_BETA)

    assert_loss_is(loss, x, y, float(stored["margin_compvis/oracle64_loss_each"]))
    if "margin_compvis/oracle64_grad_each" in stored:
        assert_gradient_is(loss, x, y, stored["margin_compvis/oracle64_grad_each"])
    of_all = margin_loss(x, y, every_triplet(y), GOLDEN_BETA)
    assert of_all.item() == pytest.approx(float(stored["margin_pml_alltriplets/loss"]), rel=1e-5)


@pytest.mark.parametrize("file", files_with("dws/oracle64_prob_cut0.5"), ids=lambda file: file.stem)
def test_the_probabilities_equal_the_golden_ones(file: Path) -> None:
    stored = np.load(file)
    x, y = torch.from_numpy(stored["x"]), torch.from_numpy(stored["labels"])
    found = negative_probabilities(compared(x, y), pairwise_squared_distances(x), 0.5).numpy()
    np.testing.assert_allclose(found, stored["dws/oracle64_prob_cut0.5"], rtol=1e-5, atol=1e-12)


@given(st.integers(0, 10_000), st.integers(3, 20), st.integers(2, 6), st.integers(2, 8), st.floats(0.1, 1.5))
@settings(max_examples=40, deadline=None)
def test_the_probabilities_equal_the_equation(seed: int, items: int, dim: int, classes: int, cutoff: float) -> None:
    x, y = unit_batch(seed, items, dim, classes)
    if len(y.unique()) > 1:
        found = negative_probabilities(compared(x, y), pairwise_squared_distances(x), cutoff).numpy()
        np.testing.assert_allclose(found, probability_oracle(x.numpy(), y.numpy(), cutoff), rtol=1e-6, atol=1e-9)


@given(st.integers(0, 10_000), st.integers(2, 20), st.integers(1, 5), st.integers(1, 8), st.floats(0, 0.5))
@settings(max_examples=40, deadline=None)
def test_it_equals_the_equation(seed: int, items: int, dim: int, classes: int, nu: float) -> None:
    x, y = random_batch(seed, items, dim, classes)
    beta = torch.linspace(0.5, 2.0, classes, dtype=torch.float64)
    triplets = distance_weighted_sampling(x, y)
    rows = zip(*(index.tolist() for index in triplets), strict=True)
    expected = oracle(x.numpy(), rows, beta[y].numpy(), nu=nu)
    assert margin_loss(x, y, triplets, beta, nu=nu).item() == pytest.approx(expected, rel=1e-9)


def test_it_equals_the_loss_of_pytorch_metric_learning() -> None:
    x, y = unit_batch(items=30)
    triplets = distance_weighted_sampling(x, y)
    found = margin_loss(x, y, triplets, torch.tensor(1.2), margin=0.3)
    assert found.item() == pytest.approx(OtherMarginLoss(margin=0.3)(x, y, triplets).item(), rel=1e-6)


def test_every_ordered_positive_pair_gets_one_negative() -> None:
    x, y = unit_batch(items=40)
    anchor, positive, negative = distance_weighted_sampling(x, y)
    pairs = [(i, j) for i in range(40) for j in range(40) if i != j and y[i] == y[j]]
    assert list(zip(anchor.tolist(), positive.tolist(), strict=True)) == pairs
    assert (y[negative] != y[anchor]).all()


def test_negatives_are_drawn_with_their_probabilities() -> None:
    """One class of 200 coincident points, so that 199 pairs of each of 200 anchors draw from the same few negatives."""
    torch.manual_seed(0)
    angles = torch.tensor([0.0] * 200 + [0.6, 1.0, 1.8, 3.0])
    x, y = torch.stack([angles.cos(), angles.sin()], dim=1), torch.tensor([0] * 200 + [1] * 4)
    anchor, _, negative = distance_weighted_sampling(x, y)
    drawn = negative[anchor < 200].bincount(minlength=204) / (200 * 199)
    expected = negative_probabilities(compared(x, y), pairwise_squared_distances(x), 0.5)[0]
    assert torch.allclose(drawn.double(), expected, atol=0.01)


def test_one_seed_draws_one_set_of_negatives() -> None:
    batch = unit_batch(items=40)
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append(distance_weighted_sampling(*batch)[2].tolist())
    assert draws[0] == draws[1] != draws[2]


@pytest.mark.parametrize("case", DEGENERATE)
@pytest.mark.parametrize("dim", [1, 2, 3, 64])
def test_probabilities_are_finite_for_every_finite_batch(case: str, dim: int) -> None:
    x, y = DEGENERATE[case]
    x = torch.cat([x, -x], dim=1).repeat(1, 11)[:, :dim]
    x = torch.cat([x, -x])  # antipodes: 1 − D²/4 = 0
    found = negative_probabilities(compared(x, y.repeat(2)), pairwise_squared_distances(x), 0.5)
    assert torch.allclose(found.sum(dim=1), torch.ones(len(x), dtype=found.dtype))


def test_the_gradient_reaches_the_boundary() -> None:
    x = torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64)
    triplets = (torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([2, 2]))
    beta = torch.tensor([0.5, 9.0], dtype=torch.float64, requires_grad=True)
    margin_loss(x, torch.tensor([0, 0, 1]), triplets, beta, nu=0.1).backward()
    # Both positives are farther than 0.5 − 0.2, no negative is nearer than 0.5 + 0.2: two active terms.
    assert beta.grad is not None
    assert beta.grad.tolist() == pytest.approx([(-2 + 0.1 * 2) / 2, 0.0])
    assert torch.autograd.gradcheck(
        lambda beta: margin_loss(*random_batch(), every_triplet(random_batch()[1]), beta, nu=0.1),
        torch.linspace(1, 2, 4, dtype=torch.float64, requires_grad=True),
    )


def test_without_an_active_term_there_is_neither_loss_nor_gradient() -> None:
    x, y = torch.tensor([[0.0], [0.1], [3.0], [3.1]]), torch.tensor([0, 0, 1, 1])
    loss = MarginLoss(nu=0.5, normalize=False)
    assert loss(x, y).item() == 0.0
    assert not gradient(loss, x, y).any()


@pytest.mark.parametrize("labels", [[0, 0, 0, 0], [0, 1, 2, 3]])
def test_without_positive_pairs_or_negatives_there_is_neither_loss_nor_gradient(labels: list[int]) -> None:
    x, y = random_batch(items=4)[0], torch.tensor(labels)
    loss = MarginLoss(nu=0.5)
    assert loss(x, y).item() == 0.0
    assert not gradient(loss, x, y).any()


def test_the_module_combines_sampler_and_function() -> None:
    x, y = unit_batch()
    module = MarginLoss(0.3, beta=1.0, nu=0.1, classes=4, cutoff=0.7, normalize=False).double()
    torch.manual_seed(0)
    found = module(x, y)
    torch.manual_seed(0)
    expected = margin_loss(x, y, distance_weighted_sampling(x, y, 0.7), module.beta, 0.3, 0.1)
    assert torch.equal(found, expected)
    assert dict(module.named_parameters()).keys() == {"beta"}
    assert repr(module) == "MarginLoss(margin=0.3, nu=0.1, classes=4, cutoff=0.7, normalize=False)"


def test_invalid_arguments_are_refused() -> None:
    for name in ("margin", "beta", "cutoff", "classes"):
        with pytest.raises(UserError, match=f"{name} must be a finite number > 0, got 0"):
            MarginLoss(**{name: 0})
    with pytest.raises(UserError, match="nu must be a finite number >= 0, got -1"):
        MarginLoss(nu=-1)
    with pytest.raises(UserError, match="labels must be in 0…2"):
        MarginLoss(classes=3)(torch.randn(2, 2), torch.tensor([3, 3]))
