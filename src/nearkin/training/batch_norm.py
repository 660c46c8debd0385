"""Batch norm's statistics, for methods whose batches are not a sample of the data.

The running statistics are averages over the latest batches. If each of these comes from one region of the space, they
are not those of the data, and embeddings in evaluation mode are off. Random items give the right ones.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nearkin.data.loader import Draw
from nearkin.models.model import evaluating

ITEMS = 1024  # enough for statistics; embedding the training split for a refresh takes longer


def learning_norms(model: nn.Module) -> list[_BatchNorm]:
    """The batch norms that update their running statistics in the model's current mode."""
    found = (module for module in model.modules() if isinstance(module, _BatchNorm))
    return [norm for norm in found if norm.training and norm.track_running_stats]


def random_draws(items: int, batch_size: int, seed: tuple[int, ...]) -> list[Draw]:
    """Batches of random items of a dataset, about ``ITEMS`` in all, which depend only on the arguments.

    >>> [len(draw.indices) for draw in random_draws(items=50, batch_size=20, seed=(0, 7))]
    [20, 20]
    """
    rng = np.random.default_rng(seed)
    batch_size = min(batch_size, items)
    batches = max(1, min(items, ITEMS) // batch_size)
    chosen = rng.choice(items, batches * batch_size, replace=False)
    return [Draw(indices, int(rng.integers(2**62))) for indices in np.split(chosen, batches)]


def estimate_statistics(model: nn.Module, norms: Iterable[_BatchNorm], batches: Iterable[Tensor]) -> None:
    """Replaces the running statistics of batch norms by their averages over some batches of inputs.

    >>> norm = nn.BatchNorm1d(1)
    >>> estimate_statistics(norm, [norm], [torch.tensor([[1.0], [3.0]]), torch.tensor([[4.0], [6.0]])])
    >>> norm.running_mean, norm.momentum
    (tensor([3.5000]), 0.1)
    """
    momenta = [(norm, norm.momentum) for norm in norms]
    try:
        with evaluating(model), torch.no_grad():
            for norm, _ in momenta:
                norm.reset_running_stats()
                norm.momentum = None  # a plain average
                norm.training = True  # the rest stays in evaluation mode, without dropout
            for batch in batches:
                model(batch)
    finally:
        for norm, momentum in momenta:
            norm.momentum = momentum
