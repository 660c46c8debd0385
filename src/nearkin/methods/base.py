"""The base class of methods: a loss, a batch sampler, refreshes of the training split's space, scores at test time."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from nearkin.errors import UserError, unknown_name
from nearkin.evaluation import soft_knn_error
from nearkin.evaluation.metrics import variant
from nearkin.fields import checked_fields, parse_assignment
from nearkin.methods.ranges import Range
from nearkin.sampling import GroupSampler, LabelBatchSampler, enough_per_class
from nearkin.space import Space


@dataclass(frozen=True)
class Every:
    """How often a method needs a fresh space: every N epochs or every N steps."""

    epochs: int = 0
    steps: int = 0

    def due(self, epoch: int, position: int, step: int) -> bool:
        """Whether a refresh is due before the batch at ``position`` of ``epoch``; ``step`` counts all batches from 0.

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
class Phase:
    """A part of training for which the learning rate schedule starts again.

    Attributes:
        first_epoch: its first epoch, counted from 0; it ends where the next phase begins.
        rate_factor: factor of all learning rates.
    """

    first_epoch: int
    rate_factor: float = 1.0


@dataclass(frozen=True)
class Batch:
    """One global batch.

    Attributes:
        inputs: the inputs that this process embeds, its share of the batch.
        labels: (batch,) the labels of the global batch.
        items: (batch,) the item numbers of the global batch, on the CPU.
        step: number of batches before this one.
    """

    inputs: Tensor
    labels: Tensor
    items: Tensor
    step: int


class Embed(Protocol):
    """Maps a process's share of the inputs to embeddings of the global batch, (batch, dim), or to a learner's slice."""

    def __call__(self, inputs: Tensor, learner: int | None = None) -> Tensor: ...


class StepLoss(NamedTuple):
    """A loss that a step computes for a whole batch.

    Attributes:
        loss: called with embeddings and labels.
        dim: the number of dimensions of the embeddings.
        ids: the names of further arguments, an integer for each item.
    """

    loss: nn.Module
    dim: int
    ids: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Groups:
    """How a method currently divides the training split.

    Attributes:
        title: heading in a report, such as "Clusters of classes".
        name: name of one group, such as "cluster".
        group_of: (items,) the group of each item.
        within_classes: whether all items of a group have the same class.
    """

    title: str
    name: str
    group_of: npt.NDArray[np.int64]
    within_classes: bool = False


class Method(ABC):
    """A way to learn an embedding. Its dataclass fields are its settings.

    The training loop calls ``check``, ``prepare``, ``sampler`` and ``step_losses`` before training, ``start_epoch``
    before each epoch (and on resume), ``on_refresh`` whenever ``refresh_every`` is due, ``step`` for each batch, and
    ``read_out`` at test time. It knows nothing else about a method.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    batches: ClassVar[str]
    minimises: ClassVar[str]
    readout: ClassVar[str] = "nearest neighbours"
    # Title and meaning of the score variants that ``read_out`` adds, by prefix of their names.
    readout_columns: ClassVar[Mapping[str, tuple[str, str]]] = MappingProxyType({})
    ranges: ClassVar[Mapping[str, Range]] = MappingProxyType({})  # the settings that tuning searches
    # Learning rate of the head on a frozen pretrained backbone, and on one that is finetuned at a tenth of this rate;
    # measured with benchmarks/defaults.py.
    frozen_rate: float = 3e-4
    finetune_rate: float = 3e-4
    usual_batch: int = 128
    batch_unit: int = 2  # default batch sizes are multiples of this
    listed: bool = True  # False for a method that takes an object, which settings cannot describe
    in_all: bool = True  # whether a comparison of "all" methods includes it
    representative_batches: bool = True  # False if a batch comes from one region of the space; batch norm cares
    needs_pairs: bool = True  # whether a batch must contain two items of a class
    normalize: str = "always"  # when the paper scales embeddings to unit length: always, at test, or never
    slices: int = 1  # number of learners that share the embedding, one slice of its dimensions each
    refresh_every: Every | None = None
    refresh_on: str = "embeddings"  # or "features" of the backbone: the points of the space that ``on_refresh`` gets
    phases: tuple[Phase, ...] = (Phase(0),)  # may depend on the number of epochs, which ``prepare`` gets
    loss: nn.Module
    buffers: Mapping[str, Tensor] = MappingProxyType({})  # what ``read_out`` needs; saved with the model

    def check(self, labels: npt.ArrayLike, dim: int, batch_size: int, normalize: str) -> None:  # noqa: ARG002
        """Raises an error before training starts if the settings cannot work with the data."""
        self.check_labels(labels)

    def check_labels(self, labels: npt.ArrayLike) -> None:
        """Raises an error if the classes of the training split cannot be learnt, whatever the other settings are."""
        sizes = np.unique(np.asarray(labels), return_counts=True)[1]
        if len(sizes) < 2:
            raise UserError("the training split has only one class; use data with at least two classes")
        if self.needs_pairs and sizes.max() < 2:
            raise UserError(
                f"method '{self.name}' compares items of the same class, but every class has only one item; "
                'use method="softmax", or add items'
            )

    def most_dimensions(self, batch_size: int) -> int:  # noqa: ARG002
        """The largest number of dimensions that can be trained with batches of this size."""
        return sys.maxsize

    def prepare(self, classes: int, dim: int, epochs: int) -> None:  # noqa: B027 (most methods prepare nothing)
        """Builds what depends on the data, such as one proxy per class, before training; labels are 0…classes−1."""

    @abstractmethod
    def sampler(self, labels: npt.ArrayLike, batch_size: int, seed: int) -> LabelBatchSampler:
        """Makes the batch sampler. May be called several times to try batch sizes; the last sampler is used."""

    def part_sampler(self, labels: npt.ArrayLike, batch_size: int, seed: int) -> LabelBatchSampler:
        """Makes the sampler for a part of the items. If it has few classes, batches have more items of each."""
        return self.sampler(labels, batch_size, seed)

    def items_per_class(self) -> int:
        """Items of each class in a batch of classes × items, if such batches are chosen instead of the method's own."""
        return 4

    def start_epoch(self, epoch: int) -> None:  # noqa: B027 (most methods do not change between epochs)
        """Sets what changes between epochs; it must depend only on the epoch (from 0) and the saved state."""

    def on_refresh(self, space: Space) -> None:  # noqa: B027 (most methods need no refresh)
        """Rebuilds what comes from the whole space; ``space``: the training split, with the labels of batches."""

    def step(self, embed: Embed, batch: Batch) -> Tensor:
        """Computes the loss of one batch."""
        loss: Tensor = self.loss(embed(batch.inputs), batch.labels)
        return loss

    def step_losses(self, dim: int) -> Iterator[StepLoss]:
        """The losses that ``step`` computes at most once per batch, so that a GPU can record them."""
        yield StepLoss(self.loss, dim)

    def read_out(
        self,
        space: Space,
        trained_on: Space | None,
        recall_at: Sequence[int] = (1, 2, 4, 8),  # noqa: ARG002
        clustering: str | None = "kmeans",  # noqa: ARG002
    ) -> dict[str, float]:
        """Computes scores in addition to those of `evaluate`, such as classification errors if the classes are known.

        Args:
            space: the embedded test split.
            trained_on: the training split, embedded by the same model; None if its classes differ.
            recall_at: the values of K for Recall@K.
            clustering: the clustering algorithm, as in `evaluate`; None skips the clustering scores.
        """
        if trained_on is None:
            return {}
        return {"soft_knn_error": soft_knn_error(space, trained_on)}

    def record(self) -> dict[str, float]:
        """Values for the training record of an epoch; they must depend only on the saved state."""
        return {}

    def groups(self) -> Groups | None:
        """The groups of the training split since the last refresh, for reports; None if it is not divided."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """The state to restore on resume, including what ``on_refresh`` built; the sampler has its own state."""
        return {"loss": self.loss.state_dict(), "buffers": dict(self.buffers)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loss.load_state_dict(state["loss"])
        self.buffers = state["buffers"]

    def settings(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def searched(self) -> dict[str, tuple[Any, Range]]:
        """The settings that tuning searches, by name, with their values and ranges."""
        return {name: (getattr(self, name), where) for name, where in self.ranges.items()}

    def found(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The settings that give searched ones these values; leaves all other names as they are."""
        return dict(values)


def recordable_losses(method: Method, dim: int) -> Iterator[StepLoss]:
    """``step_losses``; none of a subclass that has its own ``step``, unless it says which losses this computes."""
    latest = next(kind for kind in type(method).__mro__ if vars(kind).keys() & {"step", "step_losses"})
    if "step_losses" in vars(latest):
        yield from method.step_losses(dim)


class GroupedMethod(Method):
    """A method whose loss needs several items per class: batches of k classes × ``per_class`` items."""

    batches = "k classes × n items"
    per_class: int

    def check(self, labels: npt.ArrayLike, dim: int, batch_size: int, normalize: str) -> None:
        super().check(labels, dim, batch_size, normalize)
        if self.per_class < 2:
            raise UserError(f"method '{self.name}' needs at least two items per class in a batch; use per_class=2")

    def items_per_class(self) -> int:
        return self.per_class

    def sampler(self, labels: npt.ArrayLike, batch_size: int, seed: int) -> LabelBatchSampler:
        return GroupSampler(labels, batch_size, self.per_class, seed)

    def part_sampler(self, labels: npt.ArrayLike, batch_size: int, seed: int) -> LabelBatchSampler:
        return GroupSampler(labels, batch_size, enough_per_class(labels, batch_size, self.per_class), seed)


_registry: dict[str, type[Method]] = {}


def register(method: type[Method]) -> type[Method]:
    """Registers a method under its name, together with the score variants that it adds."""
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
    """Makes a method by name, with the given settings.

    >>> make_method("rank", alpha=2.0).settings()["alpha"]
    2.0
    """
    method = method_class(name)
    return method(**checked_fields(method, settings, f"method '{name}'"))


def parse_method(text: str) -> Method:
    """Makes a method from a string: its name and, after a colon, its settings.

    >>> parse_method("rank:alpha=2.0,per_class=4").settings()["alpha"]
    2.0
    """
    name, settings = parse_settings(text)
    return make_method(name, **settings)


def parse_settings(text: str) -> tuple[str, dict[str, Any]]:
    """The name of a method and its settings from a string.

    >>> parse_settings("rank:alpha=2.0,per_class=4")
    ('rank', {'alpha': 2.0, 'per_class': 4})
    """
    name, _, settings = text.partition(":")
    return name, dict(parse_assignment(part) for part in settings.split(",") if part)
