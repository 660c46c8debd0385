"""Losses by name, for configuration files and the command line. Each loss registers itself in its own file."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, TypeVar

from torch import nn

from nearkin.errors import UserError, unknown_name
from nearkin.fields import build
from nearkin.losses.pml import PMLLoss, pml_losses

_LOSSES: dict[str, type[nn.Module]] = {}
_PML = "pml:"

Module = TypeVar("Module", bound=type[nn.Module])


def register_loss(name: str) -> Callable[[Module], Module]:
    """Registers a loss under a name: a module that takes embeddings and labels and returns a scalar.

    Files in this package are imported automatically; import any other file yourself.

    >>> @register_loss("length")  # doctest: +SKIP
    ... class LengthLoss(nn.Module):
    ...     def forward(self, embeddings, labels):
    ...         return embeddings.norm()
    """

    def register(kind: Module) -> Module:
        before = _LOSSES.setdefault(name, kind)
        if (before.__module__, before.__qualname__) != (kind.__module__, kind.__qualname__):
            raise UserError(f"loss '{name}' is already {before.__module__}.{before.__qualname__}; choose another name")
        _LOSSES[name] = kind  # replaces the class if its file is imported again, as in a notebook
        return kind

    return register


def register_files(package: str, folders: list[str]) -> None:
    """Imports all files of a package, which registers their losses."""
    for file in iter_modules(folders):
        if not file.name.startswith("_"):
            import_module(f"{package}.{file.name}")


def registered_losses() -> dict[str, type[nn.Module]]:
    """The registered losses by name, in alphabetical order, without those of pytorch-metric-learning."""
    return dict(sorted(_LOSSES.items()))


def make_loss(name: str, **settings: Any) -> nn.Module:
    """Makes a loss by name, with the given settings; ``pml:<Name>`` is a loss of pytorch-metric-learning.

    >>> make_loss("rank", alpha=2.0)
    RankApproximationLoss(alpha=2.0, eps=0.0001, gradient_everywhere=False)
    >>> make_loss("pml:CircleLoss", gamma=64).loss.gamma
    64
    """
    if name.startswith(_PML):
        return PMLLoss(name.removeprefix(_PML), **settings)
    if name not in _LOSSES:
        raise unknown_name("loss", name, [*_LOSSES, f"{_PML}<Name>"])
    return build(_LOSSES[name], settings, f"loss '{name}'")


def known_losses() -> list[str]:
    """All names that `make_loss` accepts.

    >>> {"rank", "pml:CircleLoss"} <= set(known_losses())
    True
    """
    return [*registered_losses(), *(_PML + name for name in pml_losses())]
