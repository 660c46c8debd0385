"""Item to vector: standardise, backbone, head."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize as unit_length

from nearkin.data.transforms import Preprocess
from nearkin.errors import UserError, unknown_name
from nearkin.models.backbones import image_backbone, vector_backbone

NORMALIZE = ("always", "test", "never")
HEADS = ("linear", "none")


@dataclass(frozen=True)
class ModelSpec:
    """All that is needed to build a model again, before its weights are loaded.

    Attributes:
        backbone: ``small``, ``mlp``, ``linear``, ``torchvision:googlenet`` or a name of timm.
        dim: length of the embedding; without a head, 0 stands for the width of the backbone's features.
        normalize: whether embeddings have unit length "always", only at "test", or "never".
        preprocess: what the backbone expects of pictures; None for feature vectors.
        features: length of the feature vectors it reads; 0 for pictures.
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
            raise UserError(f"{slices} learners cannot share {dim} dimensions evenly; use --set dim={fitting}")
        if kind == "none" and (dim != features or slices != 1):
            raise UserError(
                f"without a head the embedding is the backbone's {features} features for one learner, "
                f"not {dim} numbers for {slices}; use dim={features}, slices=1 or a linear head"
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
    """Pictures (batch, channels, size, size) uint8, or vectors (batch, features), to (batch, dim).

    Args:
        freeze_batch_norm: whether the backbone's batch norms keep their statistics in training.
        width: what a backbone for pictures gives; None: found by trying the backbone on one picture.

    >>> model = EmbeddingModel(ModelSpec("linear", dim=2, features=3))
    >>> model(torch.ones(5, 3)).shape
    torch.Size([5, 2])
    >>> EmbeddingModel(ModelSpec("linear", dim=0, features=3, head="none")).spec.dim
    3
    """

    def __init__(self, spec: ModelSpec, freeze_batch_norm: bool = False, width: int | None = None) -> None:
        super().__init__()
        self.freeze_batch_norm = freeze_batch_norm
        if spec.preprocess is None:
            mean, std = torch.zeros(spec.features), torch.ones(spec.features)
            backbone, width = vector_backbone(spec.backbone, spec.features)
        else:
            mean = torch.tensor(spec.preprocess.mean).view(-1, 1, 1)
            std = torch.tensor(spec.preprocess.std).view(-1, 1, 1)
            backbone, width = image_backbone(spec.backbone, spec.preprocess, width)
        self.standardise = Standardise(mean, std)
        self.backbone = backbone
        self.width = width  # of the backbone's features
        self.spec = replace(spec, dim=width) if spec.head == "none" and spec.dim == 0 else spec
        self.head = Head(width, self.spec.dim, spec.normalize, spec.slices, spec.head)
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
