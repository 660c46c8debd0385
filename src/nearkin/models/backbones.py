"""Backbones by name: nearkin's own, GoogLeNet, or any model of timm, with their own preprocessing and weights."""

from __future__ import annotations

import logging
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.data.transforms import Preprocess
from nearkin.errors import UserError, unknown_name
from nearkin.models.builtin import FOR_IMAGES, FOR_VECTORS
from nearkin.models.googlenet import GOOGLENET, googlenet, googlenet_imagenet_weights, googlenet_preprocess

log = logging.getLogger("nearkin")


def is_builtin(name: str) -> bool:
    return name in FOR_IMAGES or name in FOR_VECTORS


def image_backbone(name: str, preprocess: Preprocess, width: int | None = None) -> tuple[nn.Module, int]:
    """An untrained backbone for pictures and the length of its feature vector, which may be known already."""
    if name in FOR_IMAGES:
        return FOR_IMAGES[name](preprocess.channels)
    backbone = googlenet() if name == GOOGLENET else _timm_model(name)
    if width is not None:
        return backbone, width
    # Asked rather than read off: which attribute holds the pooled width differs between timm's families.
    try:
        with torch.no_grad():
            features = backbone.eval()(torch.zeros(1, 3, preprocess.size, preprocess.size))
    except (AssertionError, RuntimeError, ValueError) as error:
        reason = str(error).split("\n")[0]
        raise UserError(f"backbone '{name}' does not take pictures of {preprocess.size} pixels ({reason})") from error
    return backbone, int(features.shape[1])


def vector_backbone(name: str, features: int) -> tuple[nn.Module, int]:
    """A backbone for feature vectors and the length of what it gives."""
    if name not in FOR_VECTORS:
        raise UserError(f"backbone '{name}' reads images, but the data are feature vectors; use 'mlp' or 'linear'")
    return FOR_VECTORS[name](features)


def preprocess_of(name: str, image_size: int | None, channels: int = 3) -> Preprocess:
    """What a backbone expects of a picture: timm's own data config, or pixels in −1…1 for ``small`` and GoogLeNet."""
    if name in FOR_IMAGES:
        size = image_size or 64
        half = (0.5,) * channels
        return Preprocess(size, size, channels, half, half)
    if name == GOOGLENET:
        return googlenet_preprocess(image_size)
    config: dict[str, Any] = load_timm().data.resolve_model_data_config(_timm_model(name))
    size = image_size or int(config["input_size"][-1])
    return Preprocess(
        size=size,
        resize=round(size / config["crop_pct"]),
        channels=3,
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        interpolation=config["interpolation"],
    )


def load_weights(backbone: nn.Module, name: str, weights: str) -> None:
    """Fills a backbone: ``none``, ``imagenet`` (downloaded by timm or torchvision) or the path of a local file."""
    if weights == "none":
        return
    if weights == "imagenet":
        state = _downloaded(name)
    else:
        state = read_weights(Path(weights).expanduser())
    # A model that nearkin saved holds the backbone under that name.
    state = {key.removeprefix("backbone."): value for key, value in state.items()}
    wanted = backbone.state_dict()
    missing = [key for key in wanted if key not in state and not key.endswith("num_batches_tracked")]
    misshapen = [key for key in wanted if key in state and state[key].shape != wanted[key].shape]
    if missing or misshapen:
        key = (missing or misshapen)[0]
        raise UserError(
            f"weights {weights} do not fit backbone '{name}' ({len(missing)} tensors missing, {len(misshapen)} of "
            f"another shape, the first '{key}'); were they saved from another model?"
        )
    # A classifier that the file also holds is left out; half precision becomes the model's own.
    backbone.load_state_dict({key: state[key] for key in wanted if key in state}, strict=False)


def read_weights(file: Path) -> dict[str, Tensor]:
    """Tensors from a .safetensors or torch file; nothing in the file is ever executed."""
    if not file.is_file():
        raise UserError(f"there is no weights file {file}; give a path, 'imagenet' or 'none'")
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(file)
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise UserError(f"{file} is no readable weights file ({type(error).__name__}); use .safetensors") from error
    state = state.get("state_dict", state) if isinstance(state, dict) else None
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UserError(f"{file} holds no plain dictionary of tensors; save model.state_dict()")
    return state


def load_timm() -> ModuleType:
    """timm, which imports torchvision, where it is needed: together they take seconds."""
    from nearkin import _torchvision  # noqa: F401, I001 (first)
    import timm

    return timm


def _timm_model(name: str) -> nn.Module:
    timm = load_timm()
    if name in FOR_VECTORS:
        raise UserError(
            f"backbone '{name}' reads feature vectors, but the data are images; use 'small' or a timm model"
        )
    if not timm.is_model(name):
        raise unknown_name_of_timm(name)
    model: nn.Module = timm.create_model(name, pretrained=False, num_classes=0)
    return model


def unknown_name_of_timm(name: str) -> UserError:
    others = [*FOR_IMAGES, *FOR_VECTORS, GOOGLENET]
    message = str(unknown_name("backbone", name, [*others, *load_timm().list_models()])).split(" Known: ")[0]
    return UserError(f"{message} Known: {', '.join(others)} and every name in timm.list_models()")


def _downloaded(name: str) -> dict[str, Tensor]:
    if is_builtin(name):
        raise UserError(f"backbone '{name}' has no ImageNet weights; use --set weights=none or a file")
    log.info("fetching the ImageNet weights of %s", name)
    for chatty in ("timm", "huggingface_hub"):  # their retries would bury the one sentence below
        logging.getLogger(chatty).setLevel(logging.CRITICAL)
    try:
        if name == GOOGLENET:
            return googlenet_imagenet_weights()
        state: dict[str, Tensor] = load_timm().create_model(name, pretrained=True, num_classes=0).state_dict()
    # timm, torchvision and the hub raise many kinds, from missing weights to a broken connection.
    except Exception as error:
        reason = str(error).split("\n")[0]
        raise UserError(
            f"the ImageNet weights of '{name}' could not be fetched ({reason}); "
            "connect to the internet, or give a file: weights=FILE"
        ) from error
    return state
