"""A user's own module as a backbone: its name in a saved model, and its preprocessing."""

from __future__ import annotations

import sys
from typing import Any

from torch import nn

from nearkin.data.transforms import Preprocess
from nearkin.models.backbones.timm_models import preprocess_from_timm

MODULE = "module:"


def module_name(module: nn.Module) -> str:
    """``module:`` and the import path of the class, or only its name if it cannot be imported.

    Saved models contain it for people to read. nearkin never imports it.

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
    """The preprocessing in the module's ``pretrained_cfg``, as in timm; None if it has none."""
    for name in ("pretrained_cfg", "default_cfg"):
        config = getattr(module, name, None)
        if isinstance(config, dict) and {"input_size", "mean", "std"} <= config.keys():
            return preprocess_from_timm(config)
    return None
