"""timm models as backbones: without the classifier, with their own preprocessing and ImageNet weights."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from torch import Tensor, nn

from nearkin.data.transforms import Preprocess
from nearkin.models.backbones.hub import one_attempt

TIMM = "timm:"


def load_timm() -> ModuleType:
    """Imports timm only when needed: with torchvision, that takes seconds."""
    from nearkin import _torchvision  # noqa: F401, I001 (first)
    import timm

    return timm


def timm_model(name: str) -> nn.Module:
    """Builds an untrained network that returns pooled features (batch, width).

    >>> timm_model("test_resnet").num_features
    96
    """
    model: nn.Module = load_timm().create_model(name, pretrained=False, num_classes=0)
    return model


def timm_config(name: str) -> Preprocess | None:
    """The preprocessing of a timm model; None if timm has no such model.

    >>> timm_config("resnet18").size, timm_config("resnet")
    (224, None)
    """
    timm = load_timm()
    if not timm.is_model(name):  # False for names that timm would download, such as hf-hub:a/b
        return None
    found = timm.get_pretrained_cfg(name)
    config: dict[str, Any] = timm.data.resolve_data_config(pretrained_cfg=found.to_dict() if found else {})
    return preprocess_from_timm(config)


def preprocess_from_timm(config: dict[str, Any]) -> Preprocess:
    """Converts timm's configuration to a `Preprocess`."""
    size = int(config["input_size"][-1])
    return Preprocess(
        size=size,
        resize=round(size / (config.get("crop_pct") or 0.875)),
        channels=int(config["input_size"][0]),
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        interpolation=config.get("interpolation", "bicubic"),
    )


def timm_weights(name: str) -> dict[str, Tensor]:
    """The ImageNet weights, downloaded by timm."""
    with one_attempt():
        state: dict[str, Tensor] = load_timm().create_model(name, pretrained=True, num_classes=0).state_dict()
    return state


def list_timm() -> list[str]:
    names: list[str] = load_timm().list_models()
    return names
