"""The lifted structure loss equals Eq. 2, the golden numbers, and another implementation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.losses import LiftedStructureLoss as OtherLiftedStructureLoss
from reference.batches import assert_gradient_is, assert_loss_is, golden_files, gradient, random_batch
from reference.lifted import lifted_structure_loss as oracle

from nearkin.errors import UserError
from nearkin.losses import LiftedStructureLoss, lifted_structure_loss


@pytest.mark.parametrize("file", golden_files("p*.npz"), ids=lambda file: file.stem)
def test_loss_and_gradient_equal_the_golden_ones(file: Path) -> None:
    stored = np.load(file)
    x, y = torch.from_numpy(stored["x"]), torch.from_numpy(stored["labels"])
    loss = LiftedStructureLoss()
    assert_loss_is(loss, x, y, np.nan_to_num(float(stored["lifted_m1.0/oracle64_loss"])))  # 0/0 without positive pairs
    assert_gradient_is(loss, x, y, np.nan_to_num(stored["lifted_m1.0/oracle64_grad"]))
    if "lifted_pml/loss" in stored:
        assert loss(x, y).item() == pytest.approx(float(stored["lifted_pml/loss"]), rel=1e-5)


@given(st.integers(0, 10_000), st.integers(2, 20), st.integers(1, 5), st.integers(1, 8), st.floats(0.01, 3))
@settings(max_examples=40, deadline=None)
def test_it_equals_the_equation(seed: int, items: int, dim: int, classes: int, margin: float) -> None:
    x, y = random_batch(seed, items, dim, classes)
    expected = oracle(x.numpy(), y.numpy(), margin)
    assert lifted_structure_loss(x, y, margin).item() == pytest.approx(expected, rel=1e-9)


def test_it_equals_the_loss_of_pytorch_metric_learning() -> None:
    x, y = random_batch(items=30)
    other = OtherLiftedStructureLoss(neg_margin=0.5, distance=LpDistance(normalize_embeddings=False))
    loss = LiftedStructureLoss(0.5)
    assert loss(x, y).item() == pytest.approx(other(x, y).item())
    assert torch.allclose(gradient(loss, x, y), gradient(other, x, y))


@pytest.mark.parametrize("labels", [[0, 0, 0, 0], [0, 1, 2, 3]])
def test_without_positive_pairs_or_negatives_there_is_neither_loss_nor_gradient(labels: list[int]) -> None:
    x, y = random_batch(items=4)[0], torch.tensor(labels)
    assert lifted_structure_loss(x, y).item() == 0.0
    assert not gradient(lifted_structure_loss, x, y).any()


def test_the_module_equals_the_function() -> None:
    x, y = random_batch()
    assert torch.equal(LiftedStructureLoss(2.0)(x, y), lifted_structure_loss(x, y, 2.0))
    assert repr(LiftedStructureLoss()) == "LiftedStructureLoss(margin=1.0)"


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(UserError, match="margin must be a finite number > 0, got 0"):
        lifted_structure_loss(*random_batch(), margin=0.0)
    with pytest.raises(UserError, match="margin must be a finite number > 0"):
        LiftedStructureLoss(-1.0)
