"""Compilation by numba, kept on the disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled on its first call, which takes seconds, and remembered where a folder for that can be written.

    What is remembered holds until the function's own file changes: after editing another one that it calls, delete
    ``__pycache__``.
    """
    try:
        compiled: Callable[..., Any] = njit(cache=True)(function)
    except RuntimeError:
        compiled = njit(function)
    return compiled


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled as a part of each function that calls it, for what is called per candidate or per point.

    As calls of their own these would spend most of their time passing arrays.
    """
    compiled: Callable[..., Any] = njit(inline="always")(function)
    return compiled
