"""The registry of backbones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor, nn

from nearkin.data.transforms import Preprocess
from nearkin.errors import UserError, unknown_name
from nearkin.models.backbones.own import MODULE, module_config, module_name
from nearkin.models.backbones.timm_models import TIMM, list_timm, timm_config, timm_model, timm_weights

Build = Callable[[int], nn.Module]
IMAGENET = Preprocess(224, 256, 3, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


@dataclass(frozen=True)
class Backbone:
    """How to build a backbone, and what it takes.

    Attributes:
        name: its name in settings and in saved models.
        build: builds it, untrained, for a number of channels or features. It returns (batch, width).
        preprocess: how images are prepared for it; None if it does not take images.
        vectors: whether it takes feature vectors.
        grey: whether it can be built for one channel; otherwise grey images are converted to RGB.
        imagenet: returns its ImageNet weights; None if there are none.
        versioned: whether its code is part of nearkin, timm or torchvision, so that its name, weights and versions
            determine its features. Features of other backbones are not cached.
    """

    name: str
    build: Build
    preprocess: Preprocess | None = None
    vectors: bool = False
    grey: bool = False
    imagenet: Callable[[], dict[str, Tensor]] | None = None
    versioned: bool = False

    def check_reads(self, data: Literal["images", "vectors"]) -> None:
        """Raises if the backbone does not take this kind of data."""
        if data == "images" and self.preprocess is None:
            raise UserError(
                f"backbone '{self.name}' takes feature vectors, but the data are images; use 'small' or a timm model"
            )
        if data == "vectors" and not self.vectors:
            raise UserError(
                f"backbone '{self.name}' takes images, but the data are feature vectors; use 'mlp' or 'linear'"
            )


_BACKBONES: dict[str, Backbone] = {}


def register_backbone(
    name: str,
    reads: Preprocess | Literal["vectors"] = IMAGENET,
    grey: bool = False,
    imagenet: Callable[[], dict[str, Tensor]] | None = None,
) -> Callable[[Build], Build]:
    """Registers a function that builds a backbone for a number of channels or features.

    Args:
        name: name of the backbone.
        reads: how images are prepared for it, by default as for ImageNet; or "vectors".
        grey, imagenet: see `Backbone`.

    >>> @register_backbone("sum", reads="vectors")
    ... def make_sum(features: int) -> nn.Module:
    ...     return nn.Linear(features, 1, bias=False)
    >>> find_backbone("sum").build(3)
    Linear(in_features=3, out_features=1, bias=False)
    """

    def register(build: Build) -> Build:
        known = _BACKBONES.get(name)
        if known is not None and known.build.__qualname__ != build.__qualname__:
            raise UserError(f"backbone '{name}' already exists; choose another name")
        _BACKBONES[name] = Backbone(
            name=name,
            build=build,
            preprocess=None if reads == "vectors" else reads,
            vectors=reads == "vectors",
            grey=grey,
            imagenet=imagenet,
            versioned=build.__module__.startswith("nearkin."),
        )
        return build

    return register


def known_backbones() -> list[str]:
    """The registered names. Every name in ``timm.list_models()`` is also a backbone.

    >>> {"linear", "mlp", "small", "torchvision:googlenet"} <= set(known_backbones())
    True
    """
    return sorted(_BACKBONES)


def find_backbone(backbone: str | nn.Module) -> Backbone:
    """Finds a backbone by name, where ``timm:`` is optional; or makes one of a user's own module.

    >>> find_backbone("mlp").vectors, find_backbone(nn.Flatten()).name
    (True, 'module:torch.nn.modules.flatten.Flatten')
    """
    if isinstance(backbone, nn.Module):
        expected = module_config(backbone) or IMAGENET
        return Backbone(module_name(backbone), lambda _: backbone, expected, vectors=True, grey=True)
    if callable(backbone):  # for example a class instead of an instance
        raise UserError(f"backbone must be a name or a torch.nn.Module, got {backbone}")
    if backbone in _BACKBONES:
        return _BACKBONES[backbone]
    if backbone.startswith(MODULE):
        name = backbone.removeprefix(MODULE)
        raise UserError(
            f"the backbone is your own module {name}, which nearkin does not import; "
            f"pass it: nearkin.load(path, backbone={name.split('.')[-1]}(...))"
        )
    name = backbone.removeprefix(TIMM)
    preprocess = timm_config(name)
    if preprocess is None:
        error = unknown_name("backbone", backbone, [*_BACKBONES, *list_timm()])
        hint = str(error).split(" Known: ")[0]
        raise UserError(f"{hint} Known: {', '.join(known_backbones())} and every name in timm.list_models()")
    return Backbone(name, lambda _: timm_model(name), preprocess, imagenet=lambda: timm_weights(name), versioned=True)


def preprocess_of(backbone: str | nn.Module, image_size: int | None = None, channels: int = 3) -> Preprocess:
    """The preprocessing of a backbone, optionally for another image size.

    >>> preprocess_of("small", 32, channels=1)
    Preprocess(size=32, resize=32, channels=1, mean=(0.5,), std=(0.5,), interpolation='bicubic')
    """
    found = find_backbone(backbone)
    found.check_reads("images")
    default = found.preprocess
    assert default is not None
    size = image_size or default.size
    resized = replace(default, size=size, resize=round(size * default.resize / default.size))
    if channels == 1 and found.grey and isinstance(backbone, str):  # a user's module declares its channels itself
        return replace(resized, channels=1, mean=default.mean[:1], std=default.std[:1])
    return resized
