"""Micro-batches: embeds batches larger than memory in pieces, with the gradient of the whole batch.

Law, Urtasun, Zemel: Deep Spectral Clustering Learning, ICML 2017, 4.1: embed 70 pieces of 18 images without keeping
activations, compute the loss of all 1,260 embeddings and its gradient with respect to them once, then run each piece
forward again and backpropagate its share. This is gradient checkpointing with one checkpoint per piece, so it works
with every loss and every method. The exception is batch norm: in training it sees one piece at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

log = logging.getLogger("nearkin")


def micro_batched(model: nn.Module, size: int, batch: int) -> nn.Module:
    """Wraps a model to embed ``batch`` items in pieces of ``size``; returns it unchanged if one piece is enough."""
    if not 0 < size < batch:
        return model
    model.train()
    if any(module.training for module in model.modules() if isinstance(module, _BatchNorm)):
        log.warning("batch norm sees only %d items at a time; to avoid this, use freeze_batch_norm=true", size)
    return MicroBatched(model, size)


class MicroBatched(nn.Module):
    """Keeps the activations of at most ``size`` items at a time; the output is the model's.

    >>> model = nn.Linear(3, 2)
    >>> inputs = torch.randn(10, 3)
    >>> torch.equal(MicroBatched(model, size=4)(inputs), model(inputs))
    True
    """

    def __init__(self, model: nn.Module, size: int) -> None:
        super().__init__()
        self.model = model
        self.size = size

    def forward(self, inputs: Tensor, *rest: object) -> Tensor:
        least = -(-len(inputs) // self.size)
        # All of one size if possible, which is compiled once; batch norm cannot use a piece of one item.
        number = next((n for n in range(least, 2 * least) if len(inputs) % n == 0), least)
        pieces = [
            checkpoint(self.model, piece, *rest, use_reentrant=False, context_fn=self._contexts)
            for piece in inputs.tensor_split(number)
        ]
        return torch.cat(pieces)

    def _contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """The contexts of a piece's first and second forward pass."""
        return nullcontext(), _without_counting(self.model)


@contextmanager
def _without_counting(model: nn.Module) -> Iterator[None]:
    """Stops batch norm from updating its running statistics with the same piece twice."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    before = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    counts_nothing = torch.tensor(0)
    try:
        for norm in norms:
            norm.momentum, norm.num_batches_tracked = 0.0, counts_nothing
        yield
    finally:
        for norm, (momentum, counted) in zip(norms, before, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, counted
