"""Backbones by name: one file each, which registers it; a user's own module; and every model of timm.

Adding one is adding a file here, or calling `register_backbone` anywhere else before it is used.
"""

from importlib import import_module
from pkgutil import iter_modules

from nearkin.models.backbones.registry import (
    Backbone,
    find_backbone,
    known_backbones,
    preprocess_of,
    register_backbone,
)

for _file in iter_modules(__path__):
    import_module(f"{__name__}.{_file.name}")

__all__ = ["Backbone", "find_backbone", "known_backbones", "preprocess_of", "register_backbone"]
