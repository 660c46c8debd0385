"""Where weights come from: a download, a file, or a trained model. Nothing that is read is ever executed."""

from __future__ import annotations

import logging
import warnings
from copy import deepcopy
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.errors import UserError
from nearkin.files import check_regular, open_regular
from nearkin.models.backbones import find_backbone
from nearkin.models.backbones.own import MODULE
from nearkin.models.embedder import Embedder
from nearkin.models.model import EmbeddingModel, ModelSpec

log = logging.getLogger("nearkin")


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


@torch.no_grad()
def init_from(model: EmbeddingModel, source: Embedder | str | Path) -> bool:
    """Copies a trained model into a new one: the backbone, and the head where both have one.

    The head is taken as a whole: it may be shared by another number of learners than before. With it come the mean and
    deviation of feature vectors, because its weights were learned for these.

    Args:
        source: an embedder, a run folder, or a model folder.

    Returns:
        Whether the head was copied; a trained model without one leaves the new head as it is.

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
    wanted, state = model.backbone.state_dict(), trained.backbone.state_dict()
    if {key: value.shape for key, value in wanted.items()} != {key: value.shape for key, value in state.items()}:
        was = trained.spec.preprocess
        fix = f"use image_size={was.size}" if was else "use the same module"
        raise UserError(f"the weights of {name} do not fit this backbone; {fix}")
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
        raise UserError(f"{name} reads vectors of {trained.features} features, not {new.features}; give it such data")
    if trained.head == "linear" and new.dim != trained.dim:
        raise UserError(
            f"{name} has {trained.dim} embedding dimensions, not {new.dim}; leave out dim, or use dim={trained.dim}"
        )


def read_weights(file: Path) -> dict[str, Tensor]:
    """Tensors from a .safetensors or torch file; nothing in the file is ever executed."""
    if not file.is_file():
        raise UserError(f'weights file {file} does not exist; give a path, "imagenet" or "none"')
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(check_regular(file))
        state = read_torch_file(file, torch.device("cpu"))
    except Exception as error:
        raise UserError(f"{file} is not a readable weights file ({type(error).__name__}); use .safetensors") from error
    state = state.get("state_dict", state) if isinstance(state, dict) else None
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UserError(f"{file} is not a plain dictionary of tensors; save model.state_dict()")
    return state


def read_torch_file(file: Path, device: torch.device, follow: bool = True) -> Any:
    """What a file of torch holds: tensors and plain values; a file with anything else in it is refused, never executed.

    ``follow``: whether it may be a link.
    """
    with open_regular(file, follow) as opened, warnings.catch_warnings(action="ignore"):  # torch wants to hear of them
        try:
            return torch.load(opened, map_location=device, weights_only=True)
        except UnpicklingError:  # whose advice is to execute what the file holds
            raise ValueError("it contains more than tensors and plain values, or is damaged") from None


def _downloaded(name: str) -> dict[str, Tensor]:
    fetch = find_backbone(name).imagenet
    if fetch is None:
        raise UserError(f"backbone '{name}' has no ImageNet weights; use weights=\"none\" or give a file")
    log.info("downloading the ImageNet weights of %s", name)
    for chatty in ("timm", "huggingface_hub"):  # their retries would bury the one sentence below
        logging.getLogger(chatty).setLevel(logging.CRITICAL)
    try:
        return fetch()
    # timm, torchvision and the hub raise many kinds, from missing weights to a broken connection.
    except Exception as error:
        reason = str(error).split("\n")[0]
        raise UserError(
            f"the ImageNet weights of '{name}' could not be downloaded ({reason}); "
            'connect to the internet, or give a file: weights="FILE"'
        ) from error
