"""Proxy-NCA and softmax equal their equations, golden numbers and other implementations; their parameters train."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning import losses
from reference.batches import assert_gradient_is, assert_loss_is, golden_files, gradient, random_batch
from reference.proxynca import proxy_nca_loss as oracle
from reference.softmax import softmax_loss as softmax_oracle
from torch import Tensor

from nearkin.errors import UserError
from nearkin.losses import ProxyNCALoss, SoftmaxLoss, proxy_nca_loss

GOLDEN = [file for file in golden_files("p*.npz") if "proxynca/proxies" in np.load(file)]


@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: file.stem)
def test_loss_and_gradient_equal_the_golden_ones(file: Path) -> None:
    stored = np.load(file)
    x, y = torch.from_numpy(stored["x"]), torch.from_numpy(stored["proxynca/label_index"])
    proxies = torch.from_numpy(stored["proxynca/proxies"])

    def paper(x: Tensor, y: Tensor) -> Tensor:
        return proxy_nca_loss(x, y, proxies.to(x.dtype), positive_in_denominator=False)

    def softmax(x: Tensor, y: Tensor) -> Tensor:
        return proxy_nca_loss(x, y, proxies.to(x.dtype), positive_in_denominator=True)

    assert_loss_is(paper, x, y, float(stored["proxynca/oracle64_loss_paper"]))
    assert_gradient_is(paper, x, y, stored["proxynca/oracle64_grad_paper"])
    assert_loss_is(softmax, x, y, float(stored["proxynca/oracle64_loss_incl"]))
    if "proxynca/pml_grad" in stored:
        assert np.allclose(gradient(softmax, x, y), stored["proxynca/pml_grad"], atol=1e-7)


@given(st.integers(0, 10_000), st.integers(1, 20), st.integers(1, 5), st.integers(2, 8), st.floats(0.1, 4))
@settings(max_examples=40, deadline=None)
def test_it_equals_the_equation(seed: int, items: int, dim: int, classes: int, scale: float) -> None:
    x, y = random_batch(seed, items, dim, classes)
    proxies, _ = random_batch(seed + 1, classes, dim)
    for included in (False, True):
        expected = oracle(x.numpy(), y.numpy(), proxies.numpy(), scale, included)
        assert proxy_nca_loss(x, y, proxies, scale, included).item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_with_the_positive_it_equals_pytorch_metric_learning() -> None:
    x, y = random_batch(items=40, dim=8)
    theirs = losses.ProxyNCALoss(num_classes=4, embedding_size=8, softmax_scale=3.0).double()
    ours = ProxyNCALoss(classes=4, dim=8, scale=3.0, positive_in_denominator=True).double()
    ours.proxies.data = theirs.proxies.data.clone()
    assert ours(x, y).item() == pytest.approx(theirs(x, y).item())
    assert torch.allclose(gradient(ours, x, y), gradient(theirs, x, y))
    assert torch.allclose(ours.proxies.grad, theirs.proxies.grad)


def test_with_one_class_the_loss_of_the_paper_is_zero() -> None:
    loss = ProxyNCALoss(classes=1, dim=2, positive_in_denominator=False)
    x, y = torch.randn(3, 2), torch.zeros(3, dtype=torch.long)
    assert loss(x, y).item() == 0.0
    assert not gradient(loss, x, y).any()


def test_the_proxies_gradient_is_right() -> None:
    x, y = random_batch(items=10)
    proxies, _ = random_batch(1, items=4)
    for included in (False, True):
        assert torch.autograd.gradcheck(lambda p, i=included: proxy_nca_loss(x, y, p, 2.0, i), proxies.requires_grad_())


def test_softmax_is_a_linear_classifier_with_cross_entropy() -> None:
    x, y = random_batch(items=20, dim=5)
    loss = SoftmaxLoss(classes=4, dim=5).double()
    weight, bias = (parameter.detach().numpy() for parameter in loss.classifier.parameters())
    assert loss(x, y).item() == pytest.approx(softmax_oracle(x.numpy(), y.numpy(), weight, bias))
    assert gradient(loss, x, y).any()
    assert loss.classifier.weight.grad.any()
    assert loss.classifier.bias.grad.any()


@pytest.mark.parametrize("kind", [ProxyNCALoss, SoftmaxLoss])
def test_other_dimensions_and_labels_are_refused(kind: type[ProxyNCALoss] | type[SoftmaxLoss]) -> None:
    with pytest.raises(UserError, match="built for embeddings with 8 dimensions, got 2"):
        kind(classes=3, dim=8)(torch.randn(3, 2), torch.tensor([0, 1, 2]))
    with pytest.raises(UserError, match="labels must be in 0…2"):
        kind(classes=3, dim=8)(torch.randn(1, 8), torch.tensor([3]))
    with pytest.raises(UserError, match="classes must be a finite number > 0"):
        kind(classes=0, dim=8)
