"""Loads weights from a download, a file, or a trained model. No code in a file is ever executed."""

from __future__ import annotations

import logging
import warnings
from copy import deepcopy
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.errors import ResourceError, UserError
from nearkin.files import check_regular, open_regular
from nearkin.models.backbones import find_backbone
from nearkin.models.backbones.own import MODULE
from nearkin.models.embedder import Embedder
from nearkin.models.model import EmbeddingModel, ModelSpec

log = logging.getLogger("nearkin")


def load_weights(backbone: nn.Module, name: str, weights: str) -> None:
    """Loads weights into a backbone: ``none``, ``imagenet`` (a download by timm or torchvision), or a local file."""
    if weights == "none":
        return
    if weights == "imagenet":
        state = _downloaded(name)
    else:
        state = read_weights(Path(weights).expanduser())
    # In a model that nearkin saved, the backbone has this prefix.
    state = {key.removeprefix("backbone."): value for key, value in state.items()}
    expected = backbone.state_dict()
    missing = [key for key in expected if key not in state and not key.endswith("num_batches_tracked")]
    misshapen = [key for key in expected if key in state and state[key].shape != expected[key].shape]
    if missing or misshapen:
        key = (missing or misshapen)[0]
        raise UserError(
            f"weights {weights} do not match backbone '{name}' ({len(missing)} tensors missing, {len(misshapen)} with "
            f"another shape, first '{key}'); use weights of the same network"
        )
    # A classifier in the file is ignored; half precision is converted to the model's own.
    backbone.load_state_dict({key: state[key] for key in expected if key in state}, strict=False)


@torch.no_grad()
def init_from(model: EmbeddingModel, source: Embedder | str | Path) -> bool:
    """Copies the weights of a trained model into a new one: the backbone, and the head if the trained model has one.

    The head is copied as a whole, so the two models may have different numbers of learners. The mean and standard
    deviation of feature vectors are copied too, because the weights were learnt with them.

    Args:
        model: the new model, which is changed.
        source: an embedder, a run folder, or a model folder.

    Returns:
        Whether the head was copied. If the trained model has no head, the new head is not changed.

    >>> trained = Embedder(EmbeddingModel(ModelSpec("mlp", dim=4, features=3)))
    >>> model = EmbeddingModel(ModelSpec("mlp", dim=4, features=3, slices=2))
    >>> init_from(model, trained)
    True
    >>> torch.allclose(model.eval()(torch.ones(1, 3)), trained.model(torch.ones(1, 3)), atol=1e-6)
    True
    """
    if isinstance(source, Embedder):
        name, trained = "init", source.model
    else:
        own = deepcopy(model.backbone) if model.spec.backbone.startswith(MODULE) else None
        name, trained = str(source), Embedder.load(source, own).model
    _check_alike(model.spec, trained.spec, name)
    expected, state = model.backbone.state_dict(), trained.backbone.state_dict()
    if {key: value.shape for key, value in expected.items()} != {key: value.shape for key, value in state.items()}:
        was = trained.spec.preprocess
        fix = f"use image_size={was.size}" if was else "use the same module"
        raise UserError(f"the weights of {name} do not match this backbone; {fix}")
    model.backbone.load_state_dict(state)
    if model.spec.preprocess is None:
        model.standardise.load_state_dict(trained.standardise.state_dict())
    if not trained.head.project:
        return False
    for kind in ("weight", "bias"):
        whole = torch.cat([getattr(project, kind) for project in trained.head.project])
        for project, own_rows in zip(model.head.project, whole.chunk(model.spec.slices), strict=True):
            getattr(project, kind).copy_(own_rows)
    return True


def _check_alike(new: ModelSpec, trained: ModelSpec, name: str) -> None:
    own = new.backbone.startswith(MODULE) and trained.backbone.startswith(MODULE)
    if new.backbone != trained.backbone and not own:
        raise UserError(
            f"{name} has backbone '{trained.backbone}', not '{new.backbone}'; "
            f'leave out backbone, or use backbone="{trained.backbone}"'
        )
    if new.features != trained.features:
        raise UserError(f"{name} takes vectors of {trained.features} features, got {new.features}; use matching data")
    if trained.head == "linear" and new.dim != trained.dim:
        raise UserError(
            f"{name} has {trained.dim} embedding dimensions, not {new.dim}; leave out dim, or use dim={trained.dim}"
        )


def check_weights_file(file: Path) -> None:
    if not file.is_file():
        raise ResourceError(f'weights file {file} does not exist; use another path, "imagenet" or "none"')


def read_weights(file: Path) -> dict[str, Tensor]:
    """Reads tensors from a .safetensors or torch file. No code in the file is executed."""
    check_weights_file(file)
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(check_regular(file))
        state = read_torch_file(file, torch.device("cpu"))
    except Exception as error:
        raise UserError(f"{file} is not a readable weights file ({type(error).__name__}); use .safetensors") from error
    state = state.get("state_dict", state) if isinstance(state, dict) else None
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UserError(f"{file} is not a dictionary of tensors; save model.state_dict()")
    return state


def read_torch_file(file: Path, device: torch.device, follow: bool = True) -> Any:
    """Reads a torch file of tensors and plain values. A file that contains anything else is refused, not executed.

    ``follow``: whether the file may be a symbolic link.
    """
    with open_regular(file, follow) as opened, warnings.catch_warnings(action="ignore"):  # torch asks to report them
        try:
            return torch.load(opened, map_location=device, weights_only=True)
        except UnpicklingError:  # its message advises to execute the file
            raise ValueError("it contains more than tensors and plain values, or is damaged") from None


def _downloaded(name: str) -> dict[str, Tensor]:
    fetch = find_backbone(name).imagenet
    if fetch is None:
        raise UserError(f"backbone '{name}' has no ImageNet weights; use weights=\"none\" or a weights file")
    log.info("downloading the ImageNet weights of %s", name)
    for chatty in ("timm", "huggingface_hub"):  # their messages about retries would hide the error below
        logging.getLogger(chatty).setLevel(logging.CRITICAL)
    try:
        return fetch()
    # timm, torchvision and the hub raise many kinds of errors, from missing weights to a broken connection.
    except Exception as error:
        reason = str(error).split("\n")[0]
        raise ResourceError(
            f"the ImageNet weights of '{name}' could not be downloaded ({reason}); "
            'connect to the internet, or use a local file: weights="FILE"'
        ) from error
