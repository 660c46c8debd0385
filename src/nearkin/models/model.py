"""Item to vector: standardise, backbone, head."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize as unit_length

from nearkin.data.transforms import Preprocess
from nearkin.errors import UserError, unknown_name
from nearkin.models.backbones import find_backbone, preprocess_of
from nearkin.models.backbones.own import MODULE, module_name

NORMALIZE = ("always", "test", "never")
HEADS = ("linear", "none")


@dataclass(frozen=True)
class ModelSpec:
    """All that is needed to build a model again, before its weights are loaded.

    Attributes:
        backbone: a registered name, such as ``small``, ``mlp`` or ``linear``, a name of timm, or ``module:`` and what
            a module of one's own is called.
        dim: length of the embedding; without a head, 0 stands for the width of the backbone's features.
        normalize: whether embeddings have unit length "always", only at "test", or "never".
        preprocess: what the backbone expects of images; None for feature vectors.
        features: length of the feature vectors it reads; 0 for images.
        slices: learners that share the embedding, each with its own dim / slices dimensions.
        head: "linear", or "none": the embedding is the backbone's feature vector itself.
    """

    backbone: str
    dim: int
    normalize: str = "always"
    preprocess: Preprocess | None = None
    features: int = 0
    slices: int = 1
    head: str = "linear"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ModelSpec:
        preprocess = value["preprocess"]
        if preprocess is not None:
            preprocess = Preprocess(
                **{**preprocess, "mean": tuple(preprocess["mean"]), "std": tuple(preprocess["std"])}
            )
        return cls(**{**value, "preprocess": preprocess})


class Standardise(nn.Module):
    """(x − mean) / std along the first dimension after the batch; bytes are pixels and become 0…1 first."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 2 and x.shape[1] != len(self.mean):
            raise UserError(f"this model reads vectors of {len(self.mean)} features, not {x.shape[1]}")
        if x.dtype == torch.uint8:
            x = x.to(self.mean.dtype) / 255
        return (x - self.mean) / self.std


class Head(nn.Module):
    """The embedding head: linear or none, then unit length where and when it is wanted.

    Its dimensions may be shared by several learners, consecutive slices of the embedding. Each has parameters of its
    own, so that an optimiser passes over those that a step did not use: no momentum or weight decay moves them.
    """

    def __init__(self, features: int, dim: int, normalize: str, slices: int = 1, kind: str = "linear") -> None:
        super().__init__()
        if kind not in HEADS:
            raise unknown_name("head", kind, HEADS)
        if normalize not in NORMALIZE:
            raise unknown_name("normalisation", normalize, NORMALIZE)
        if dim < 1:
            raise UserError(f"an embedding needs at least one dimension, not {dim}")
        if slices < 1 or dim % slices:
            fitting = max(1, round(dim / max(1, slices))) * max(1, slices)
            raise UserError(f"{slices} learners cannot share {dim} dimensions evenly; use dim={fitting}")
        if kind == "none" and (dim != features or slices != 1):
            raise UserError(
                f"without a head the embedding is the backbone's {features} features for one learner, "
                f'not {dim} dimensions for {slices}; use dim={features}, slices=1 or head="linear"'
            )
        learners = slices if kind == "linear" else 0
        self.project = nn.ModuleList(nn.Linear(features, dim // slices) for _ in range(learners))
        self.normalize = normalize

    def forward(self, features: Tensor, learner: int | None = None) -> Tensor:
        """(batch, dim), or the slice of one learner alone."""
        embeddings = features
        if self.project:
            learners = self.project if learner is None else self.project[learner : learner + 1]
            embeddings = torch.cat([project(features) for project in learners], dim=1)
        if self.normalize == "always" or (self.normalize == "test" and not self.training):
            return unit_length(embeddings.float(), dim=1)
        return embeddings


class EmbeddingModel(nn.Module):
    """Images (batch, channels, size, size) uint8 or in 0…1, or vectors (batch, features), to (batch, dim).

    Args:
        freeze_batch_norm: whether the backbone's batch norms keep their statistics in training.
        width: length of the backbone's features; None: found by trying the backbone.
        backbone: a module of one's own, from (batch, channels, size, size) or (batch, features) to (batch, width);
            None: the one that ``spec.backbone`` names.

    >>> model = EmbeddingModel(ModelSpec("linear", dim=2, features=3))
    >>> model(torch.ones(5, 3)).shape
    torch.Size([5, 2])
    >>> EmbeddingModel(ModelSpec("linear", dim=0, features=3, head="none")).spec.dim
    3
    """

    def __init__(
        self,
        spec: ModelSpec,
        freeze_batch_norm: bool = False,
        width: int | None = None,
        backbone: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.freeze_batch_norm = freeze_batch_norm
        kind = find_backbone(spec.backbone if backbone is None else backbone)
        kind.check_reads("vectors" if spec.preprocess is None else "images")
        self.versioned = kind.versioned
        if spec.preprocess is None:
            shape: tuple[int, ...] = (spec.features,)
            mean, std = torch.zeros(spec.features), torch.ones(spec.features)
        else:
            size, channels = spec.preprocess.size, spec.preprocess.channels
            shape = (channels, size, size)
            mean, std = (torch.tensor(each).view(-1, 1, 1) for each in (spec.preprocess.mean, spec.preprocess.std))
        self.standardise = Standardise(mean, std)
        self.backbone = kind.build(shape[0])
        self.width = width or _tried_width(self.backbone, kind.name.removeprefix(MODULE), shape)
        spec = replace(spec, backbone=kind.name)
        self.spec = replace(spec, dim=self.width) if spec.head == "none" and spec.dim == 0 else spec
        self.head = Head(self.width, self.spec.dim, spec.normalize, spec.slices, spec.head)
        if spec.preprocess is not None:
            # Convolutions run up to 1.5 times as fast so.
            self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def features(self, x: Tensor) -> Tensor:
        """What the head reads: (batch, width)."""
        x = self.standardise(x)
        if x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        result: Tensor = self.backbone(x)
        return result

    def forward(self, x: Tensor, learner: int | None = None) -> Tensor:
        embeddings: Tensor = self.head(self.features(x), learner)
        return embeddings

    def train(self, mode: bool = True) -> EmbeddingModel:
        super().train(mode)
        if self.freeze_batch_norm:
            for module in self.backbone.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self


def wrap_backbone(
    module: nn.Module,
    dim: int = 128,
    normalize: str = "always",
    preprocess: Preprocess | None = None,
    features: int = 0,
) -> EmbeddingModel:
    """An embedding model around a module of one's own, which gives (batch, width).

    Args:
        module: reads images (batch, 3, size, size), standardised; or vectors (batch, features).
        dim: length of the embedding; 0: that of the module's features, without a head.
        preprocess: what the module expects of images; None: what it says in timm's way (``pretrained_cfg``), or 224
            pixels, standardised as for ImageNet.
        features: length of the vectors it reads; 0: it reads images.

    >>> wrap_backbone(nn.Linear(3, 7), dim=2, features=3)(torch.ones(5, 3)).shape
    torch.Size([5, 2])
    """
    images = None if features else preprocess or preprocess_of(module)
    head = "linear" if dim else "none"
    spec = ModelSpec(module_name(module), dim, normalize, images, features, head=head)
    return EmbeddingModel(spec, backbone=module)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, then again in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]  # parts of it may be frozen
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def device_of(model: nn.Module) -> torch.device:
    """Where a model is: its weights, or its statistics if it has none; the CPU for a head that is nothing at all."""
    first = next(chain(model.parameters(), model.buffers()), None)
    return torch.device("cpu") if first is None else first.device


def usual_device() -> str:
    """Where a model that nobody has placed is used: the GPU if there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def _tried_width(backbone: nn.Module, name: str, shape: tuple[int, ...]) -> int:
    """The length of what a backbone gives, found by trying it; what it gives is checked on the way."""
    # Asked rather than read off: which attribute holds the width differs from module to module.
    inputs = torch.linspace(-1, 1, 2 * math.prod(shape)).view(2, *shape)
    if (weight := next(backbone.parameters(), None)) is not None:
        inputs = inputs.to(weight.device)
    try:
        with evaluating(backbone), torch.no_grad():
            found: object = backbone(inputs)
    except Exception as error:  # a network raises whatever its layers do
        reason = str(error).split("\n")[0]
        what = f"images of {shape[-1]} pixels" if len(shape) == 3 else f"vectors of {shape[0]} features"
        raise UserError(f"backbone '{name}' does not take {what} ({reason})") from error
    if not isinstance(found, Tensor):
        raise UserError(
            f"backbone '{name}' returned a {type(found).__name__}; return a tensor of shape (batch, features)"
        )
    if found.ndim != 2 or len(found) != 2 or not found.shape[1]:
        raise UserError(
            f"backbone '{name}' returned a tensor of shape {tuple(found.shape)} for a batch of 2; "
            "return one of shape (batch, features)"
        )
    if not found.is_floating_point():
        raise UserError(f"backbone '{name}' returned {found.dtype}; return floating point numbers")
    if not found.is_meta and not found.isfinite().all():
        raise UserError(f"backbone '{name}' returned NaN or infinity for ordinary inputs; check its weights")
    return found.shape[1]
