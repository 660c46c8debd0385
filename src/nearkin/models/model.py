"""The embedding model: standardise, backbone, head."""

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
    """Everything needed to build a model, except its weights.

    Attributes:
        backbone: a registered name, such as ``small``, ``mlp`` or ``linear``; a timm name; or ``module:`` and the name
            of a user's own module.
        dim: dimension of the embedding; without a head, 0 stands for the width of the backbone's features.
        normalize: whether embeddings have unit length: "always", only at "test", or "never".
        preprocess: how images are prepared for the backbone; None for feature vectors.
        features: length of the input feature vectors; 0 for images.
        slices: number of learners that share the embedding, with dim / slices dimensions each.
        head: "linear"; or "none", which makes the backbone's feature vector the embedding.
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
    """(x − mean) / std for every channel or feature. uint8 pixels are scaled to 0…1 first."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 2 and x.shape[1] != len(self.mean):
            raise UserError(f"this model takes vectors of {len(self.mean)} features, got {x.shape[1]}")
        if x.dtype == torch.uint8:
            x = x.to(self.mean.dtype) / 255
        return (x - self.mean) / self.std


class Head(nn.Module):
    """The embedding head: linear or none, then optional normalisation to unit length.

    Several learners may share the embedding, each with a slice of consecutive dimensions. Each learner has its own
    parameters, so that an optimiser skips those that a step did not use, including momentum and weight decay.
    """

    def __init__(self, features: int, dim: int, normalize: str, slices: int = 1, kind: str = "linear") -> None:
        super().__init__()
        if kind not in HEADS:
            raise unknown_name("head", kind, HEADS)
        if normalize not in NORMALIZE:
            raise unknown_name("normalisation", normalize, NORMALIZE)
        if dim < 1:
            raise UserError(f"dim must be an integer >= 1, got {dim}")
        if slices < 1 or dim % slices:
            fitting = max(1, round(dim / max(1, slices))) * max(1, slices)
            raise UserError(f"dim={dim} is not divisible by the number of learners, {slices}; use dim={fitting}")
        if kind == "none" and (dim != features or slices != 1):
            raise UserError(
                f"without a head, dim must be the width of the backbone's features, {features}, and slices must be 1, "
                f'got dim={dim} and slices={slices}; use dim={features}, slices=1 or head="linear"'
            )
        learners = slices if kind == "linear" else 0
        self.project = nn.ModuleList(nn.Linear(features, dim // slices) for _ in range(learners))
        self.normalize = normalize

    def forward(self, features: Tensor, learner: int | None = None) -> Tensor:
        """Embeddings (batch, dim), or only the slice of one learner (batch, dim / slices)."""
        embeddings = features
        if self.project:
            learners = self.project if learner is None else self.project[learner : learner + 1]
            embeddings = torch.cat([project(features) for project in learners], dim=1)
        if self.normalize == "always" or (self.normalize == "test" and not self.training):
            return unit_length(embeddings.float(), dim=1)
        return embeddings


class EmbeddingModel(nn.Module):
    """Embeds images (batch, channels, size, size), uint8 or in 0…1, or vectors (batch, features): (batch, dim).

    Args:
        spec: the description of the model.
        freeze_batch_norm: whether the backbone's batch norms keep their statistics in training.
        width: width of the backbone's features; None: found by a forward pass.
        backbone: a user's own module, from (batch, channels, size, size) or (batch, features) to (batch, width); None:
            the backbone that ``spec.backbone`` names.

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
        self.width = width or _find_width(self.backbone, kind.name.removeprefix(MODULE), shape)
        spec = replace(spec, backbone=kind.name)
        self.spec = replace(spec, dim=self.width) if spec.head == "none" and spec.dim == 0 else spec
        self.head = Head(self.width, self.spec.dim, spec.normalize, spec.slices, spec.head)
        if spec.preprocess is not None:
            # Convolutions are up to 1.5 times as fast in this layout.
            self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def features(self, x: Tensor) -> Tensor:
        """Backbone features (batch, width), the input of the head."""
        x = self.standardise(x)
        if x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        result: Tensor = self.backbone(x)
        return result

    def forward(self, x: Tensor, learner: int | None = None, head: bool = True) -> Tensor:
        """Embeddings (batch, dim), the slice of one learner, or the backbone's features without the head."""
        features = self.features(x)
        embeddings: Tensor = self.head(features, learner) if head else features
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
    """Makes an embedding model with your own module as its backbone.

    Args:
        module: takes standardised images (batch, 3, size, size), or vectors (batch, features); returns (batch, width).
        dim: dimension of the embedding; 0: no head, the module's features are the embedding.
        normalize: whether embeddings have unit length: "always", only at "test", or "never".
        preprocess: how images are prepared for the module; None: from the module's ``pretrained_cfg``, as in timm, or
            224 pixels, standardised as for ImageNet.
        features: length of the input vectors; 0: the module takes images.

    >>> wrap_backbone(nn.Linear(3, 7), dim=2, features=3)(torch.ones(5, 3)).shape
    torch.Size([5, 2])
    """
    images = None if features else preprocess or preprocess_of(module)
    head = "linear" if dim else "none"
    spec = ModelSpec(module_name(module), dim, normalize, images, features, head=head)
    return EmbeddingModel(spec, backbone=module)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switches a model to evaluation mode, and back at the end."""
    modes = [(module, module.training) for module in model.modules()]  # modules may differ: some may be frozen
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def device_of(model: nn.Module) -> torch.device:
    """The device of a model's parameters or buffers; the CPU if it has none."""
    first = next(chain(model.parameters(), model.buffers()), None)
    return torch.device("cpu") if first is None else first.device


def default_device() -> str:
    """The default device of models: the GPU if there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def _find_width(backbone: nn.Module, name: str, shape: tuple[int, ...]) -> int:
    """The width of a backbone's features, found by a forward pass. The output is checked, too."""
    # Not read from an attribute: its name differs between modules.
    inputs = torch.linspace(-1, 1, 2 * math.prod(shape)).view(2, *shape)
    if (weight := next(backbone.parameters(), None)) is not None:
        inputs = inputs.to(weight.device)
    try:
        with evaluating(backbone), torch.no_grad():
            found: object = backbone(inputs)
    except Exception as error:  # a network may raise anything
        reason = str(error).split("\n")[0]
        what = f"images of {shape[-1]} pixels" if len(shape) == 3 else f"vectors of {shape[0]} features"
        raise UserError(f"backbone '{name}' fails on {what} ({reason})") from error
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
        raise UserError(f"backbone '{name}' returned {found.dtype}; return a floating-point tensor")
    if not found.is_meta and not found.isfinite().all():
        raise UserError(f"backbone '{name}' returned NaN or infinity for inputs in −1…1; check its weights")
    return found.shape[1]
