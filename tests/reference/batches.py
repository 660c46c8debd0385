"""Batches for the tests of all losses: golden files, random batches, and degenerate ones that break losses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

GOLDEN = Path(__file__).parents[1] / "golden"
Loss = Callable[[Tensor, Tensor], Tensor]


def golden_files(pattern: str) -> list[Path]:
    return sorted(GOLDEN.glob(pattern))


def random_batch(seed: int = 0, items: int = 12, dim: int = 3, classes: int = 4) -> tuple[Tensor, Tensor]:
    """float64 points and labels in 0…classes−1."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=(items, dim))), torch.from_numpy(rng.integers(0, classes, items))


def gradient(loss: Loss, x: Tensor, y: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    loss(x, y).backward()
    assert x.grad is not None
    return x.grad


def assert_loss_is(loss: Loss, x: Tensor, y: Tensor, expected: float) -> None:
    """Checks the loss against a golden value, in float32 and float64."""
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-9)):
        found = loss(x.to(dtype), y).item()
        assert abs(found - expected) <= tolerance * abs(expected) + tolerance * 1e-3


def assert_gradient_is(loss: Loss, x: Tensor, y: Tensor, expected: np.ndarray) -> None:
    """Checks the gradient against a golden one, in float32 and float64; errors are relative to its largest entry."""
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-9)):
        if expected.dtype == np.float32:  # larger golden gradients are stored in float32
            tolerance = max(tolerance, 1e-7)
        error = np.abs(gradient(loss, x.to(dtype), y).double().numpy() - expected).max()
        assert error <= tolerance * np.abs(expected).max() + tolerance * 1e-3  # zeros have rounding errors


def _degenerate() -> dict[str, tuple[Tensor, Tensor]]:
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 3))).float()
    pairs = [0, 0, 1, 1, 2, 2]
    cases: dict[str, tuple[Tensor, list[int]]] = {
        "coincident points": (torch.ones(6, 3), pairs),
        "coincident pairs": (x[:3].repeat_interleave(2, dim=0), pairs),
        "two places": (torch.tensor([[0.0, 0.0, 1.0], [1.0, 1.0, 0.0]]).repeat(3, 1), pairs),
        "nearly coincident": (torch.ones(6, 3) + 1e-7 * x, pairs),
        "one class": (x, [5] * 6),
        "all classes different": (x, list(range(6))),
        "singletons": (x, [0, 0, 0, 1, 2, 3]),
        "zero vectors": (torch.zeros(6, 3), pairs),
        "one zero vector": (torch.cat([torch.zeros(1, 3), x[1:]]), pairs),
        "huge": (x * 1e18, pairs),
        "tiny": (x * 1e-18, pairs),
        "a pair of one class": (x[:2], [3, 3]),
        "a pair of two classes": (x[:2], [0, 1]),
        "alone": (x[:1], [0]),
        "on a line": (x[:, :1].expand(-1, 3), pairs),
    }
    return {name: (points, torch.tensor(labels)) for name, (points, labels) in cases.items()}


DEGENERATE = _degenerate()
