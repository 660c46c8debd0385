"""What a method is: its loss, its batches, when it wants to look at the whole space, and how it is read out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy.typing as npt
from torch import Tensor, nn

from nearkin.errors import unknown_name
from nearkin.fields import checked_fields
from nearkin.sampling import BatchSampler
from nearkin.space import Space


@dataclass(frozen=True)
class Every:
    """How often a method wants a fresh space: every so many epochs, or every so many steps."""

    epochs: int = 0
    steps: int = 0

    def due(self, epoch: int, position: int, step: int) -> bool:
        """Whether to look now, before the batch at ``position`` of ``epoch``, the ``step``-th of all (from 0).

        >>> Every(epochs=2).due(epoch=4, position=0, step=400), Every(steps=10).due(epoch=0, position=5, step=5)
        (True, False)
        """
        by_epoch = self.epochs > 0 and position == 0 and epoch % self.epochs == 0
        by_step = self.steps > 0 and step % self.steps == 0
        return by_epoch or by_step


@dataclass(frozen=True)
class Batch:
    """One global batch: the inputs this process embeds, and labels and item numbers of all of it."""

    inputs: Tensor
    labels: Tensor
    items: Tensor


Embed = Callable[[Tensor], Tensor]  # a process's share of the inputs -> the global batch's (batch, dim) embeddings


class Method(ABC):
    """A way to learn an embedding; its dataclass fields are its settings.

    The training loop calls ``prepare`` and ``sampler`` once, ``look`` whenever ``refresh`` is due, and ``step`` for
    every batch; it knows nothing else about a method.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    batches: ClassVar[str]
    minimises: ClassVar[str]
    readout: ClassVar[str] = "nearest neighbours"
    normalize: ClassVar[str] = "always"  # whether the paper trains on embeddings of unit length

    refresh: Every | None = None
    loss: nn.Module

    def prepare(self, classes: int, dim: int) -> None:  # noqa: B027 (most methods need not know)
        """Builds what depends on the data before training starts, such as a proxy per class; labels are 0…classes−1."""

    @abstractmethod
    def sampler(self, labels: npt.ArrayLike, batch_size: int, seed: int) -> BatchSampler:
        """The batches to train on."""

    def look(self, space: Space) -> None:  # noqa: B027 (most methods never look)
        """Rebuilds an index or a partition from a fresh space."""

    def step(self, embed: Embed, batch: Batch) -> Tensor:
        """The loss of one batch."""
        loss: Tensor = self.loss(embed(batch.inputs), batch.labels)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """All that must survive a stop, besides the sampler's own state; what ``look`` built belongs here too."""
        return {"loss": self.loss.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loss.load_state_dict(state["loss"])

    def settings(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]


_registry: dict[str, type[Method]] = {}


def register(method: type[Method]) -> type[Method]:
    """Makes a method known under its name."""
    _registry[method.name] = method
    return method


def known_methods() -> list[type[Method]]:
    return list(_registry.values())


def method_class(name: str) -> type[Method]:
    if name not in _registry:
        raise unknown_name("method", name, _registry)
    return _registry[name]


def make_method(name: str, **settings: Any) -> Method:
    """A method by name, with some of its settings changed.

    >>> make_method("rank", alpha=2.0).settings()["alpha"]
    2.0
    """
    method = method_class(name)
    return method(**checked_fields(method, settings, f"method '{name}'"))
