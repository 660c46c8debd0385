"""Compilation by numba, kept on the disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled on its first call, which takes seconds, and remembered where a folder for that can be written."""
    try:
        compiled: Callable[..., Any] = njit(cache=True)(function)
    except RuntimeError:
        compiled = njit(function)
    return compiled
