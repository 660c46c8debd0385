"""Any loss module as a method: batches of several classes with several items each, and the loss of the whole batch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from nearkin.errors import UserError
from nearkin.methods.base import Batch, Embed, GroupedMethod, register


@register
@dataclass
class LossModule(GroupedMethod):
    """A loss of one's own, or of another library: a module with ``loss(embeddings, labels) -> scalar``.

    Args:
        loss_class: what it is, for people to read; the module itself is given with `of`.
        per_class: items of one class in a batch.

    >>> LossModule.of(nn.TripletMarginLoss()).loss_class
    'torch.nn.modules.loss.TripletMarginLoss'
    """

    name = "loss"
    paper = "a loss module of one's own, in Python: nearkin.train(data, loss=module)"
    minimises = "that loss"
    listed = in_all = False

    loss_class: str = ""
    per_class: int = 4

    @classmethod
    def of(cls, loss: nn.Module, per_class: int = 4) -> LossModule:
        method = cls(f"{type(loss).__module__}.{type(loss).__qualname__}", per_class)
        method.loss = loss
        return method

    def prepare(self, classes: int, dim: int, epochs: int) -> None:  # noqa: ARG002
        if not hasattr(self, "loss"):
            raise UserError(
                f"the loss is a module of your own, {self.loss_class or 'unnamed'}; pass it again: loss=..."
            )

    def step(self, embed: Embed, batch: Batch) -> Tensor:
        loss: object = super().step(embed, batch)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
            raise UserError(f"{self.loss_class} returned {found}; return one number, for example loss.mean()")
        return loss.reshape(())
