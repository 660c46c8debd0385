"""Any loss module as a method, with batches of k classes × n items."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from nearkin.errors import UserError
from nearkin.methods.base import Batch, Embed, GroupedMethod, StepLoss, register


@register
@dataclass
class LossModule(GroupedMethod):
    """Your own loss, or a loss of another library: a module called as ``loss(embeddings, labels) -> scalar``.

    Args:
        loss_class: the class of the module, for display; use `of` to pass the module itself.
        per_class: items of each class in a batch.

    >>> LossModule.of(nn.TripletMarginLoss()).loss_class
    'torch.nn.modules.loss.TripletMarginLoss'
    """

    name = "loss"
    paper = "your own loss module, in Python: nearkin.train(data, loss=module)"
    minimises = "your loss"
    listed = in_all = False

    loss_class: str = ""
    per_class: int = 4

    @classmethod
    def of(cls, loss: nn.Module, per_class: int = 4) -> LossModule:
        method = cls(f"{type(loss).__module__}.{type(loss).__qualname__}", per_class)
        method.loss = loss
        return method

    def check(self, labels: npt.ArrayLike, dim: int, batch_size: int, normalize: str) -> None:
        """Also tries a copy of the loss on random embeddings, so that a faulty loss fails before training."""
        super().check(labels, dim, batch_size, normalize)
        if not hasattr(self, "loss"):
            raise UserError(f"the loss is your own module, {self.loss_class or 'unnamed'}; pass it again with loss=...")
        try:
            loss = deepcopy(self.loss)
        except Exception:  # some modules cannot be copied; the first batch tests them
            return
        tensor = next(chain(loss.parameters(), loss.buffers()), torch.empty(0))
        generator = torch.Generator().manual_seed(0)
        points = nn.functional.normalize(torch.randn(batch_size, dim, generator=generator)).to(tensor.device)
        last = len(np.unique(np.asarray(labels))) - 1
        classes = (last - torch.arange(batch_size) // self.per_class) % (last + 1)
        with torch.random.fork_rng(devices=[]):
            value = self._value(loss, points.requires_grad_(), classes.to(tensor.device))
        if not torch.isfinite(value):
            raise UserError(f"{self.loss_class} returned {value.item()} for random unit vectors; check the loss")

    def step(self, embed: Embed, batch: Batch) -> Tensor:
        return self._value(self.loss, embed(batch.inputs), batch.labels)

    def step_losses(self, dim: int) -> Iterator[StepLoss]:
        yield StepLoss(self.loss, dim)

    def _value(self, loss: nn.Module, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Computes the loss; raises unless it is a scalar with a gradient."""
        try:
            value: object = loss(embeddings, labels)
        except (UserError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # user code can raise anything
            shape = tuple(embeddings.shape)
            raise UserError(
                f"{self.loss_class} cannot be called as loss(embeddings, labels) with embeddings of shape {shape} and "
                f"labels 0 to {int(labels.max())} ({type(error).__name__}: {error}); "
                "wrap it in a module that accepts these arguments"
            ) from error
        if not isinstance(value, Tensor) or value.numel() != 1:
            found = f"tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise UserError(f"{self.loss_class} returned a {found}; return a scalar, for example loss.mean()")
        if not value.requires_grad:
            raise UserError(f"{self.loss_class} returned a scalar without a gradient; compute it from the embeddings")
        return value.reshape(())
