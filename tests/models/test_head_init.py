"""Initializing a head with the main directions of features."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from nearkin.models.head_init import MAX_ITEMS, init_head
from nearkin.models.model import Head


def features(items: int = 40, width: int = 6) -> np.ndarray:
    rng = np.random.default_rng(0)
    return (rng.normal(size=(items, width)) * np.arange(width, 0, -1) + 1).astype(np.float32)


def test_the_directions_are_the_top_right_singular_vectors() -> None:
    x, head = features(), Head(6, 3, "never")
    init_head(head, x)
    expected = torch.linalg.svd(torch.from_numpy(x).double()).Vh[:3]
    found = head.project[0].weight.double()
    assert torch.allclose((found * expected).sum(1).abs(), torch.ones(3, dtype=torch.float64), atol=1e-6)
    assert not head.project[0].bias.any()


def test_a_head_as_wide_as_the_features_keeps_all_distances() -> None:
    x, head = features(), Head(6, 6, "always").eval()
    init_head(head, x)
    unit = normalize(torch.from_numpy(x), dim=1)
    assert torch.allclose(
        torch.cdist(head(torch.from_numpy(x)), head(torch.from_numpy(x))), torch.cdist(unit, unit), atol=1e-3
    )


def test_several_learners_keep_the_distances_of_one_and_share_the_main_direction() -> None:
    x, one, two = features(), Head(6, 4, "never"), Head(6, 4, "never", slices=2)
    init_head(one, x)
    init_head(two, x)
    alone, joined = one(torch.from_numpy(x)), two(torch.from_numpy(x))
    assert torch.allclose(joined @ joined.T, alone @ alone.T, atol=1e-3)
    shares = [(project.weight @ one.project[0].weight.T).square().sum(0) for project in two.project]
    assert all(0.01 < share[0] < 0.99 for share in shares)


def test_dimensions_beyond_the_features_start_small_but_not_zero() -> None:
    head = Head(6, 9, "never")
    init_head(head, features())
    rest = head.project[0].weight[6:]
    assert (rest.norm(dim=1) > 0).all() and (rest.norm(dim=1) < 0.05).all()


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_scale_of_features_does_not_matter(scale: float) -> None:
    head, scaled = Head(6, 3, "never"), Head(6, 3, "never")
    init_head(head, features())
    init_head(scaled, features() * np.float32(scale))
    assert torch.allclose(head.project[0].weight, scaled.project[0].weight, atol=1e-5)


def test_many_features_are_sampled() -> None:
    head = Head(2, 1, "never")
    many = np.zeros((MAX_ITEMS + 1000, 2), dtype=np.float32)
    many[:, 1] = 1.0
    init_head(head, many)
    assert head.project[0].weight.tolist() == [[0.0, 1.0]]


def test_few_features_are_completed_to_a_basis_that_does_not_depend_on_their_order() -> None:
    few, mixed, whole = features(items=3), Head(6, 6, "never"), Head(6, 6, "never")
    init_head(whole, few)
    init_head(mixed, few[[2, 0, 1]])
    weight = whole.project[0].weight
    assert torch.allclose(weight @ weight.T, torch.eye(6), atol=1e-5)
    assert torch.allclose(weight, mixed.project[0].weight, atol=1e-4)
