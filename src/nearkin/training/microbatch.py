"""Batches larger than memory: embedded piece by piece, with the gradient of the whole.

Law, Urtasun, Zemel: Deep Spectral Clustering Learning, ICML 2017, 4.1: embed 70 pieces of 18 images without keeping
activations, compute the loss of all 1,260 embeddings and its gradient with respect to them once, then run each piece
forward again and backpropagate its share. This is what gradient checkpointing does, one checkpoint per piece; so it
serves every loss and every method. Batch norm is the exception: in training it sees one piece at a time.
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
    """The model, made to embed batches of ``batch`` items in pieces; itself where ``size`` asks for none or one."""
    if not 0 < size < batch:
        return model
    model.train()
    if any(module.training for module in model.modules() if isinstance(module, _BatchNorm)):
        log.warning("batch norm sees only %d items at a time; to avoid this, use freeze_batch_norm=true", size)
    return MicroBatched(model, size)


class MicroBatched(nn.Module):
    """A model that holds the activations of ``size`` items at most; its output is the same.

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
        number = -(-len(inputs) // self.size)
        pieces = [
            checkpoint(self.model, piece, *rest, use_reentrant=False, context_fn=self._contexts)
            for piece in inputs.tensor_split(number)  # alike: batch norm cannot do with a rest of one item
        ]
        return torch.cat(pieces)

    def _contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Around a piece's first run and around its second."""
        return nullcontext(), _without_counting(self.model)


@contextmanager
def _without_counting(model: nn.Module) -> Iterator[None]:
    """Keeps batch norm's running statistics from counting a piece that they have counted already."""
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
