"""Compilation by numba, kept on the disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba

PACKAGE = Path(__file__).parents[1]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled on its first call, which takes seconds, and remembered where a folder for that can be written."""
    config: Any = numba.config
    before = config.CACHE_DIR
    config.CACHE_DIR = str(Path(before or PACKAGE / "__pycache__") / f"compiled-{_digest_of_sources()}")
    try:
        return _kept(function)
    finally:
        config.CACHE_DIR = before


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled as a part of each function that calls it, for what is called per candidate or per point.

    As calls of their own these would spend most of their time passing arrays.
    """
    part: Callable[..., Any] = numba.njit(inline="always")(function)
    return part


def _kept(function: Callable[..., Any]) -> Callable[..., Any]:
    try:
        kept: Callable[..., Any] = numba.njit(cache=True)(function)
    except RuntimeError:  # nowhere to write
        kept = numba.njit(function)
    return kept


@cache
def _digest_of_sources() -> str:
    """Names the state of all compiled code: numba would miss a change in another file than the function's own."""
    digest = hashlib.sha256()
    for source in sorted(PACKAGE.glob("*/_[!_]*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]
