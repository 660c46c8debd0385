"""A user's own module as a backbone: what it is called in a saved model, and what it says about its images."""

from __future__ import annotations

import sys
from typing import Any

from torch import nn

from nearkin.data.transforms import Preprocess
from nearkin.models.backbones.timm_models import preprocess_from_timm

MODULE = "module:"


def module_name(module: nn.Module) -> str:
    """``module:`` and where its class is imported from, or the name of the class alone where it cannot be imported.

    It is written into saved models for people to read. Nothing ever imports what it says.

    >>> module_name(nn.Flatten())
    'module:torch.nn.modules.flatten.Flatten'
    """
    kind = type(module)
    found: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)  # None for a class inside a function
    importable = found is kind and kind.__module__ != "__main__"
    return MODULE + (f"{kind.__module__}.{kind.__qualname__}" if importable else kind.__name__)


def module_config(module: nn.Module) -> Preprocess | None:
    """What the module expects of images, where it says so in the way of timm's models."""
    for name in ("pretrained_cfg", "default_cfg"):
        config = getattr(module, name, None)
        if isinstance(config, dict) and {"input_size", "mean", "std"} <= config.keys():
            return preprocess_from_timm(config)
    return None
