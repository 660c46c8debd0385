"""The N-pairs loss equals Eq. 3, the golden numbers, and other implementations of both of its forms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.distances import DotProductSimilarity
from pytorch_metric_learning.losses import NTXentLoss
from reference.batches import Loss, assert_gradient_is, assert_loss_is, golden_files, gradient, random_batch
from reference.npairs import n_pairs_loss as oracle
from torch import Tensor

from nearkin.errors import UserError
from nearkin.losses import NPairsLoss, n_pairs_loss


def of_stacked_pairs(loss: NPairsLoss) -> Loss:
    """The loss of anchors and positives given as one tensor, (2 · batch, dim), as golden gradients are."""

    def paired(stacked: Tensor, y: Tensor) -> Tensor:
        anchors, positives = stacked.chunk(2)
        result: Tensor = loss(anchors, y, positives=positives)
        return result

    return paired


@pytest.mark.parametrize("file", golden_files("npairs_*.npz"), ids=lambda file: file.stem)
def test_separate_positives_have_the_golden_loss_and_gradient(file: Path) -> None:
    stored = np.load(file)
    x, y = torch.from_numpy(np.concatenate([stored["anchor"], stored["positive"]])), torch.from_numpy(stored["labels"])
    expected = {0.0: "eq3_dataterm"}
    if "repeatlabels" not in file.stem:  # TensorFlow's loss equals Eq. 3 only if labels are distinct
        expected[float(stored["reg_lambda"])] = "oracle64"
        assert of_stacked_pairs(NPairsLoss())(x, y).item() == pytest.approx(stored["tf32_loss"], rel=1e-5)
    for regularization, key in expected.items():
        loss = of_stacked_pairs(NPairsLoss(regularization))
        assert_loss_is(loss, x, y, float(stored[f"{key}_loss"]))
        assert_gradient_is(loss, x, y, stored[f"{key}_grad"].reshape(x.shape))


@given(st.integers(0, 10_000), st.integers(2, 20), st.integers(1, 5), st.integers(1, 8), st.floats(0, 1))
@settings(max_examples=40, deadline=None)
def test_it_equals_the_equation(seed: int, items: int, dim: int, classes: int, regularization: float) -> None:
    x, y = random_batch(seed, items, dim, classes)
    expected = oracle(x.numpy(), y.numpy(), regularization)
    assert n_pairs_loss(x, y, regularization).item() == pytest.approx(expected, rel=1e-9)


def test_it_equals_the_loss_of_pytorch_metric_learning() -> None:
    x, y = random_batch(items=30)
    other = NTXentLoss(temperature=1.0, distance=DotProductSimilarity(normalize_embeddings=False))
    loss = NPairsLoss(regularization=0.0)
    assert loss(x, y).item() == pytest.approx(other(x, y).item())
    assert torch.allclose(gradient(loss, x, y), gradient(other, x, y))


def test_pairs_of_distinct_classes_are_a_cross_entropy() -> None:
    anchors, positives = torch.randn(2, 5, 3, dtype=torch.float64)
    y = torch.arange(5)
    expected = torch.nn.functional.cross_entropy(anchors @ positives.T, y)
    assert n_pairs_loss(anchors, y, 0.0, positives).item() == pytest.approx(expected.item())


@pytest.mark.parametrize("labels", [[0, 0, 0, 0], [0, 1, 2, 3]])
def test_without_positive_pairs_or_negatives_there_is_neither_loss_nor_gradient(labels: list[int]) -> None:
    x, y = random_batch(items=4)[0], torch.tensor(labels)
    assert n_pairs_loss(x, y).item() == 0.0
    assert not gradient(n_pairs_loss, x, y).any()


def test_the_module_equals_the_function() -> None:
    x, y = random_batch()
    assert torch.equal(NPairsLoss(0.5)(x, y), n_pairs_loss(x, y, 0.5))
    assert torch.equal(NPairsLoss(0.5)(x, y, positives=x + 1), n_pairs_loss(x, y, 0.5, x + 1))
    assert repr(NPairsLoss()) == "NPairsLoss(regularization=0.002)"


def test_invalid_arguments_are_refused() -> None:
    x, y = random_batch()
    with pytest.raises(UserError, match="regularization must be a finite number >= 0, got -1"):
        NPairsLoss(-1.0)
    with pytest.raises(UserError, match=r"must have the same shape, got \(11, 3\) and \(12, 3\)"):
        n_pairs_loss(x, y, positives=x[1:])
    with pytest.raises(UserError, match="NaN"):
        n_pairs_loss(x, y, positives=x / 0)
    with pytest.raises(UserError, match="cannot be combined with indices_tuple or ref_emb"):
        n_pairs_loss(x, y, positives=x, ref_emb=x, ref_labels=y)


def test_large_products_keep_their_differences() -> None:
    x, y = random_batch(items=16, dim=32)
    x = (x + 30).float()
    exact = gradient(n_pairs_loss, x.double(), y)
    assert (gradient(n_pairs_loss, x, y) - exact).abs().max() <= 1e-5 * exact.abs().max()
