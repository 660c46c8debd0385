"""What a backbone is, and how it is found by its name."""

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
    """How a backbone is made, and what it reads.

    Attributes:
        name: what it is called in settings and in a saved model.
        build: makes it, untrained, for a number of channels or of features; it gives (batch, width).
        preprocess: what it expects of images; None where it reads none.
        vectors: whether it reads feature vectors.
        grey: whether it can be built for images of one channel; otherwise grey images are read as RGB.
        imagenet: gets its ImageNet weights; None where there are none.
        versioned: whether its code comes with nearkin, timm or torchvision, so that name, weights and versions tell
            what it computes. Features of others are not kept on disk.
    """

    name: str
    build: Build
    preprocess: Preprocess | None = None
    vectors: bool = False
    grey: bool = False
    imagenet: Callable[[], dict[str, Tensor]] | None = None
    versioned: bool = False

    def check_reads(self, data: Literal["images", "vectors"]) -> None:
        """Refuses data that it cannot read."""
        if data == "images" and self.preprocess is None:
            raise UserError(
                f"backbone '{self.name}' reads feature vectors, but the data are images; use 'small' or a timm model"
            )
        if data == "vectors" and not self.vectors:
            raise UserError(
                f"backbone '{self.name}' reads images, but the data are feature vectors; use 'mlp' or 'linear'"
            )


_BACKBONES: dict[str, Backbone] = {}


def register_backbone(
    name: str,
    reads: Preprocess | Literal["vectors"] = IMAGENET,
    grey: bool = False,
    imagenet: Callable[[], dict[str, Tensor]] | None = None,
) -> Callable[[Build], Build]:
    """Makes a function known as a backbone: of the number of channels, or of features, it makes the module.

    Args:
        reads: what it expects of images, by default what most networks do; or "vectors".
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
    """The registered names; besides them every name in ``timm.list_models()`` is one.

    >>> {"linear", "mlp", "small", "torchvision:googlenet"} <= set(known_backbones())
    True
    """
    return sorted(_BACKBONES)


def find_backbone(backbone: str | nn.Module) -> Backbone:
    """A backbone by its name, with or without ``timm:`` for one of timm; or around a module of one's own.

    >>> find_backbone("mlp").vectors, find_backbone(nn.Flatten()).name
    (True, 'module:torch.nn.modules.flatten.Flatten')
    """
    if isinstance(backbone, nn.Module):
        expected = module_config(backbone) or IMAGENET
        return Backbone(module_name(backbone), lambda _: backbone, expected, vectors=True, grey=True)
    if callable(backbone):  # the class, for instance, not an object of it
        raise UserError(f"a backbone is a name or a torch.nn.Module, not {backbone}")
    if backbone in _BACKBONES:
        return _BACKBONES[backbone]
    if backbone.startswith(MODULE):
        name = backbone.removeprefix(MODULE)
        raise UserError(
            f"the backbone is {name}, your own module, which nearkin does not import by itself; "
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
    """What a backbone expects of images: its own rule, for images of another size where asked for.

    >>> preprocess_of("small", 32, channels=1)
    Preprocess(size=32, resize=32, channels=1, mean=(0.5,), std=(0.5,), interpolation='bicubic')
    """
    found = find_backbone(backbone)
    found.check_reads("images")
    usual = found.preprocess
    assert usual is not None
    size = image_size or usual.size
    resized = replace(usual, size=size, resize=round(size * usual.resize / usual.size))
    if channels == 1 and found.grey and isinstance(backbone, str):  # a module says itself that it reads grey
        return replace(resized, channels=1, mean=usual.mean[:1], std=usual.std[:1])
    return resized
