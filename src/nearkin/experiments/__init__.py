"""Experiments of many runs: compare methods, tune settings, reproduce papers; recipes and paper tables as data.

>>> from nearkin.experiments import compare
>>> print(compare("photos/", ["rank", "triplet"], epochs=5))  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nearkin.experiments.comparison import compare
    from nearkin.experiments.comparison_result import ComparisonResult
    from nearkin.experiments.reproduction import reproduce
    from nearkin.experiments.reproduction_result import ReproductionResult

__all__ = ["ComparisonResult", "ReproductionResult", "compare", "reproduce"]

# Imported on first use, so that listing the recipes does not import torch.
_HOME = {
    "ComparisonResult": "comparison_result",
    "ReproductionResult": "reproduction_result",
    "compare": "comparison",
    "reproduce": "reproduction",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
