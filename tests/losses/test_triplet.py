"""The semi-hard triplet loss equals its definition and the golden numbers, and is 0 if nothing can be compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.batches import assert_gradient_is, assert_loss_is, golden_files, gradient, random_batch
from reference.triplet import triplet_semi_hard_loss as oracle

from nearkin.errors import UserError
from nearkin.losses import TripletSemiHardLoss, triplet_semi_hard_loss


@pytest.mark.parametrize("file", golden_files("p*.npz"), ids=lambda file: file.stem)
@pytest.mark.parametrize("margin", [1.0, 0.2])
def test_loss_and_gradient_equal_the_golden_ones(file: Path, margin: float) -> None:
    stored, key = np.load(file), f"triplet_m{margin}/oracle64"
    x, y = torch.from_numpy(stored["x"]), torch.from_numpy(stored["labels"])
    loss = TripletSemiHardLoss(margin, normalize=False)
    assert_loss_is(loss, x, y, np.nan_to_num(float(stored[f"{key}_loss"])))  # 0/0 without positive pairs
    if f"{key}_grad" in stored and "dups" not in file.stem:  # with duplicates it is not differentiable
        assert_gradient_is(loss, x, y, np.nan_to_num(stored[f"{key}_grad"]))


@given(st.integers(0, 10_000), st.integers(2, 20), st.integers(1, 5), st.integers(1, 8), st.floats(0.01, 3))
@settings(max_examples=40, deadline=None)
def test_it_equals_the_definition(seed: int, items: int, dim: int, classes: int, margin: float) -> None:
    x, y = random_batch(seed, items, dim, classes)
    found = triplet_semi_hard_loss(x, y, margin, normalize=False).item()
    assert found == pytest.approx(oracle(x.numpy(), y.numpy(), margin), rel=1e-9)


@pytest.mark.parametrize(
    ("negative", "expected"),
    [
        ([2.5, 9.0], 2**2 + 10 - 2.5**2),  # the nearest beyond the positive at 2
        ([1.0, 2.5], 2**2 + 10 - 2.5**2),  # nearer ones are skipped
        ([2.0, 2.5], 2**2 + 10 - 2.5**2),  # a negative at the same distance is not farther
        ([1.0, 1.5], 2**2 + 10 - 1.5**2),  # no negative is farther: the farthest is used
    ],
)
def test_the_negative_is_the_next_beyond_the_positive_or_else_the_farthest(
    negative: list[float], expected: float
) -> None:
    x = torch.tensor([[0.0, 0.0], [0.0, 2.0], *([-distance, 0.0] for distance in negative)], dtype=torch.float64)
    there = triplet_semi_hard_loss(x, torch.tensor([0, 0, 1, 2]), 10.0, normalize=False).item() * 2
    back = max(0.0, 4 + 10 - min(4 + distance**2 for distance in negative))  # all negatives are farther
    assert there == pytest.approx(expected + back)


def test_lengths_matter_only_without_normalisation() -> None:
    x, y = random_batch()
    unit = x / x.norm(dim=1, keepdim=True)
    assert triplet_semi_hard_loss(x, y).item() == pytest.approx(triplet_semi_hard_loss(unit, y, normalize=False).item())
    assert triplet_semi_hard_loss(x, y) != triplet_semi_hard_loss(x, y, normalize=False)


@pytest.mark.parametrize("labels", [[0, 0, 0, 0], [0, 1, 2, 3]])
def test_without_positive_pairs_or_negatives_there_is_neither_loss_nor_gradient(labels: list[int]) -> None:
    x, y = random_batch(items=4)[0], torch.tensor(labels)
    assert triplet_semi_hard_loss(x, y).item() == 0.0
    assert not gradient(triplet_semi_hard_loss, x, y).any()


def test_the_module_equals_the_function() -> None:
    x, y = random_batch()
    assert torch.equal(TripletSemiHardLoss(0.5, False)(x, y), triplet_semi_hard_loss(x, y, 0.5, False))
    assert repr(TripletSemiHardLoss()) == "TripletSemiHardLoss(margin=0.2, normalize=True)"


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(UserError, match="margin must be a finite number > 0, got 0"):
        triplet_semi_hard_loss(*random_batch(), margin=0.0)
    with pytest.raises(UserError, match="margin must be a finite number > 0"):
        TripletSemiHardLoss(-1.0)
