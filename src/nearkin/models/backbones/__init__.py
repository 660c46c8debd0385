"""Backbones: the registered ones, a user's own module, and every timm model.

To add one, add a file here, or call `register_backbone` anywhere before it is used.
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
