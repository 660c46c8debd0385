"""Loads a model by name: a run, a model folder, or a pretrained network whose features are the embedding."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from torch import nn

from nearkin.errors import UserError
from nearkin.models.backbones import known_backbones, preprocess_of
from nearkin.models.backbones.timm_models import TIMM, load_timm
from nearkin.models.embedder import Embedder
from nearkin.models.model import EmbeddingModel, ModelSpec
from nearkin.models.weights import load_weights


def load_model(model: str | Path, weights: str | Path | None = None, backbone: nn.Module | None = None) -> Embedder:
    """Loads a model.

    Args:
        model: a run folder, a model folder, ``timm:NAME``, ``torchvision:googlenet``, or a timm name if there is no
            folder of that name. A network by name has no head: its features, of unit length, are the embedding.
        weights: weights of a network by name: a local file; None: download the ImageNet weights.
        backbone: see `Embedder.load`.

    >>> load_model("timm:resnet50").encode(["a.jpg"]).shape  # doctest: +SKIP
    (1, 2048)
    """
    name = network_name(model)
    if name is None:
        if weights is not None:
            raise UserError(f"{model} is a saved model with its own weights; leave out weights")
        return Embedder.load(model, backbone)
    if backbone is not None:
        raise UserError(f"{model} is a network that nearkin builds itself; leave out backbone")
    if weights in ("none", ""):
        raise UserError(f"{model} without weights gives random embeddings; use a weights file, or leave out weights")
    # Built before the weights are downloaded, so that a wrong name fails at once.
    network = EmbeddingModel(ModelSpec(name, 0, "always", preprocess_of(name), head="none"))
    load_weights(network.backbone, name, "imagenet" if weights is None else str(weights))
    return Embedder(network)


def network_name(model: str | Path) -> str | None:
    """The backbone that ``model`` names; None if it is a folder.

    >>> network_name("timm:resnet50"), network_name("resnet50"), network_name("runs/resnet50")
    ('resnet50', 'resnet50', None)
    """
    text = str(model)
    if ":" in text and text in known_backbones():
        return text
    if text.startswith(TIMM):
        name = text.removeprefix(TIMM)
        if _in_timm(name):
            return name
        raise UserError(f"timm has no network '{name}'{_suggestion(name)}")
    if text.startswith("torchvision:"):
        raise UserError(f"{text} is not supported, only torchvision:googlenet; use timm:NAME")
    if Path(text).expanduser().exists() or not re.fullmatch(r"[A-Za-z0-9_.-]+", text):
        return None
    if _in_timm(text):
        return text
    if hint := _suggestion(text):
        raise UserError(f"'{text}' is neither a folder nor a known network{hint}")
    return None


def _in_timm(name: str) -> bool:
    timm = load_timm()
    # A name may include the weights: resnet50.a1_in1k.
    return name in timm.list_pretrained() if "." in name else timm.is_model(name)


def _suggestion(name: str) -> str:
    timm = load_timm()
    near = difflib.get_close_matches(name.lower(), [*timm.list_models(), *timm.list_pretrained()], n=1)
    return f"; did you mean '{near[0]}'?" if near else ""
