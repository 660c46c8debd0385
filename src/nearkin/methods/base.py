"""What a method is: its loss, its batches, when it wants the whole space embedded afresh, and how it is read out."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from nearkin.errors import UserError, unknown_name
from nearkin.evaluation import soft_knn_error
from nearkin.evaluation.metrics import variant
from nearkin.fields import checked_fields, parse_assignment
from nearkin.methods.ranges import Range
from nearkin.sampling import GroupSampler, LabelBatchSampler
from nearkin.space import Space


@dataclass(frozen=True)
class Every:
    """How often a method wants a fresh space: every N epochs, or every N steps."""

    epochs: int = 0
    steps: int = 0

    def due(self, epoch: int, position: int, step: int) -> bool:
        """Whether it is due now, before the batch at ``position`` of ``epoch``, the ``step``-th of all (from 0).

        >>> Every(epochs=2).due(epoch=4, position=0, step=400), Every(steps=10).due(epoch=0, position=5, step=5)
        (True, False)
        """
        by_epoch = self.epochs > 0 and position == 0 and epoch % self.epochs == 0
        by_step = self.steps > 0 and step % self.steps == 0
        return by_epoch or by_step

    def __str__(self) -> str:
        number, unit = (self.epochs, "epoch") if self.epochs else (self.steps, "step")
        return f"every {unit}" if number == 1 else f"every {number} {unit}s"


@dataclass(frozen=True)
class Batch:
    """One global batch: the inputs this process embeds, labels and item numbers of all of it, batches before it."""

    inputs: Tensor
    labels: Tensor
    items: Tensor
    step: int


class Embed(Protocol):
    """A process's share of the inputs -> the global batch's embeddings (batch, dim), or one learner's slice of them."""

    def __call__(self, inputs: Tensor, learner: int | None = None) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Groups:
    """How a method divides the training split at the moment.

    Attributes:
        title: a heading for all of them, such as "Clusters of classes".
        name: what one of them is called, such as "cluster".
        group_of: (items,) the number of each item's group.
        within_classes: whether the items of a group are of one class.
    """

    title: str
    name: str
    group_of: npt.NDArray[np.int64]
    within_classes: bool = False


class Method(ABC):
    """A way to learn an embedding; its dataclass fields are its settings.

    The training loop calls ``check``, ``prepare`` and ``sampler`` in the beginning, ``start_epoch`` before an epoch (or
    the rest of one, after a stop), ``on_refresh`` whenever ``refresh_every`` is due, ``step`` for every batch, and
    ``read_out`` at test; it knows nothing else about a method.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    batches: ClassVar[str]
    minimises: ClassVar[str]
    readout: ClassVar[str] = "nearest neighbours"
    # By prefix of the scores in ``read_out``: title and meaning of a way to read the space that a method adds.
    readout_columns: ClassVar[Mapping[str, tuple[str, str]]] = MappingProxyType({})
    ranges: ClassVar[Mapping[str, Range]] = MappingProxyType({})  # of its settings that a search should try
    # The head's learning rate on a pretrained backbone (benchmarks/defaults.py): frozen, or trained at a tenth of it.
    frozen_rate: float = 3e-4
    finetune_rate: float = 3e-4
    usual_batch: int = 128
    batch_unit: int = 2  # what a batch size that nobody chose must be a multiple of
    listed: bool = True  # False for one that takes an object, which no setting can name
    in_all: bool = True  # whether a comparison of all methods has it
    needs_pairs: bool = True  # whether it learns from two items of a class, or from labels alone
    normalize: str = "always"  # whether the paper trains on embeddings of unit length
    slices: int = 1  # learners that share the embedding, a slice of its dimensions each
    refresh_every: Every | None = None
    loss: nn.Module
    buffers: Mapping[str, float] = MappingProxyType({})  # what the read-out needs besides the model; kept with it

    def check(self, labels: npt.ArrayLike, dim: int, batch_size: int, normalize: str) -> None:  # noqa: ARG002
        """Refuses, before training starts, what cannot work, and names what would."""
        sizes = np.unique(np.asarray(labels), return_counts=True)[1]
        if len(sizes) < 2:
            raise UserError("there is only one class to train on; every method needs at least two")
        if self.needs_pairs and sizes.max() < 2:
            raise UserError(
                f"method '{self.name}' compares items of the same class, but every class has only one; "
                'use method="softmax", or add items'
            )

    def most_dimensions(self, batch_size: int) -> int:  # noqa: ARG002
        """The longest embedding that can be trained with batches of this size."""
        return sys.maxsize

    def prepare(self, classes: int, dim: int, epochs: int) -> None:  # noqa: B027 (most methods need not know)
        """Builds what depends on the data before training starts, such as a proxy per class; labels are 0…classes−1."""

    @abstractmethod
    def sampler(self, labels: npt.ArrayLike, batch_size: int, seed: int) -> LabelBatchSampler:
        """The batches to train on. Several may be made to try sizes; the last one is trained with."""

    def start_epoch(self, epoch: int) -> None:  # noqa: B027 (most methods do not change on the way)
        """Sets what changes from epoch to epoch, from the epoch (counted from 0) and what is part of the state."""

    def on_refresh(self, space: Space) -> None:  # noqa: B027 (most methods never do)
        """Rebuilds an index or a partition from a fresh space."""

    def step(self, embed: Embed, batch: Batch) -> Tensor:
        """The loss of one batch."""
        loss: Tensor = self.loss(embed(batch.inputs), batch.labels)
        return loss

    def read_out(
        self,
        space: Space,
        trained_on: Space | None,
        recall_at: Sequence[int] = (1, 2, 4, 8),  # noqa: ARG002
        clustering: str | None = "kmeans",  # noqa: ARG002
    ) -> dict[str, float]:
        """Scores beyond those of `evaluate`: classification errors where the space's classes were trained on.

        Args:
            trained_on: the training split, embedded by the same model; None where its classes are others.
            recall_at: the K of Recall@K.
            clustering: how clusters are found, as in `evaluate`; None for no scores of clusters.
        """
        if trained_on is None:
            return {}
        return {"soft_knn_error": soft_knn_error(space, trained_on)}

    def groups(self) -> Groups | None:
        """What a report may show: how the training split was divided at the last refresh; None where it was not."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """All that must survive a stop, besides the sampler's own state; what ``on_refresh`` built belongs here too."""
        return {"loss": self.loss.state_dict(), "buffers": dict(self.buffers)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loss.load_state_dict(state["loss"])
        self.buffers = state["buffers"]

    def settings(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]


class GroupedMethod(Method):
    """A method whose loss asks for several items per class: its batches are k classes × ``per_class``."""

    batches = "n-group: k classes × n"
    per_class: int

    def check(self, labels: npt.ArrayLike, dim: int, batch_size: int, normalize: str) -> None:
        super().check(labels, dim, batch_size, normalize)
        if self.per_class < 2:
            raise UserError(f"method '{self.name}' needs two items per class in a batch; use per_class=2 or more")

    def sampler(self, labels: npt.ArrayLike, batch_size: int, seed: int) -> LabelBatchSampler:
        return GroupSampler(labels, batch_size, self.per_class, seed)


_registry: dict[str, type[Method]] = {}


def register(method: type[Method]) -> type[Method]:
    """Makes a method known under its name, and the names of its read-out to whoever prints scores."""
    _registry[method.name] = method
    for prefix, words in method.readout_columns.items():
        variant(prefix, *words)
    return method


def known_methods() -> list[type[Method]]:
    return [method for method in _registry.values() if method.listed]


def method_class(name: str) -> type[Method]:
    if name not in _registry:
        raise unknown_name("method", name, [known for known, kind in _registry.items() if kind.listed])
    return _registry[name]


def make_method(name: str, **settings: Any) -> Method:
    """A method by name, with some of its settings changed.

    >>> make_method("rank", alpha=2.0).settings()["alpha"]
    2.0
    """
    method = method_class(name)
    return method(**checked_fields(method, settings, f"method '{name}'"))


def parse_method(text: str) -> Method:
    """A method from its name and, after a colon, its settings.

    >>> parse_method("rank:alpha=2.0,per_class=4").settings()["alpha"]
    2.0
    """
    name, _, settings = text.partition(":")
    return make_method(name, **dict(parse_assignment(part) for part in settings.split(",") if part))
