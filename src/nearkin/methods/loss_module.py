"""Any loss module as a method, with batches of several classes and several items each."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from nearkin.errors import UserError
from nearkin.methods.base import Batch, Embed, GroupedMethod, register


@register
@dataclass
class LossModule(GroupedMethod):
    """Your own loss, or one of another library: a module with ``loss(embeddings, labels) -> scalar``.

    Args:
        loss_class: the class of the module, for display; use `of` to pass the module itself.
        per_class: items of each class in a batch.

    >>> LossModule.of(nn.TripletMarginLoss()).loss_class
    'torch.nn.modules.loss.TripletMarginLoss'
    """

    name = "loss"
    paper = "your own loss module, in Python: nearkin.train(data, loss=module)"
    minimises = "that loss"
    listed = in_all = False

    loss_class: str = ""
    per_class: int = 4

    @classmethod
    def of(cls, loss: nn.Module, per_class: int = 4) -> LossModule:
        method = cls(f"{type(loss).__module__}.{type(loss).__qualname__}", per_class)
        method.loss = loss
        return method

    def check(self, labels: npt.ArrayLike, dim: int, batch_size: int, normalize: str) -> None:
        """Also tries a copy of the loss on random embeddings, so that a loss that cannot work leaves no run behind."""
        super().check(labels, dim, batch_size, normalize)
        if not hasattr(self, "loss"):
            raise UserError(f"the loss is your own module, {self.loss_class or 'unnamed'}; pass it again: loss=...")
        try:
            loss = deepcopy(self.loss)
        except Exception:  # some modules cannot be copied; they are tried by the first batch
            return
        held = next(chain(loss.parameters(), loss.buffers()), torch.empty(0))
        random = torch.Generator().manual_seed(0)
        points = nn.functional.normalize(torch.randn(batch_size, dim, generator=random)).to(held.device)
        last = len(np.unique(np.asarray(labels))) - 1
        classes = (last - torch.arange(batch_size) // self.per_class) % (last + 1)
        with torch.random.fork_rng(devices=[]):
            value = self._value(loss, points.requires_grad_(), classes.to(held.device))
        if not torch.isfinite(value):
            raise UserError(f"{self.loss_class} returned {value.item()} for ordinary embeddings; check the loss")

    def step(self, embed: Embed, batch: Batch) -> Tensor:
        return self._value(self.loss, embed(batch.inputs), batch.labels)

    def _value(self, loss: nn.Module, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The loss as a scalar with a gradient; raises a one-sentence error if it is anything else."""
        try:
            value: object = loss(embeddings, labels)
        except (UserError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # somebody else's code may raise anything
            shape = tuple(embeddings.shape)
            raise UserError(
                f"{self.loss_class} cannot be called as loss(embeddings, labels) with embeddings of shape {shape} and "
                f"labels 0 to {int(labels.max())} ({type(error).__name__}: {error}); "
                "give it what fits, or wrap it in a module that can"
            ) from error
        if not isinstance(value, Tensor) or value.numel() != 1:
            found = f"tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise UserError(f"{self.loss_class} returned a {found}; return one number, for example loss.mean()")
        if not value.requires_grad:
            raise UserError(f"{self.loss_class} returned a number without a gradient; compute it from the embeddings")
        return value.reshape(())
