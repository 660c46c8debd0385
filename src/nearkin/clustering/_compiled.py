"""Compilation by numba, cached on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba

PACKAGE = Path(__file__).parents[1]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a function on its first call, which takes seconds, and caches it if a cache folder can be written."""
    config: Any = numba.config
    before = config.CACHE_DIR
    config.CACHE_DIR = str(Path(before or PACKAGE / "__pycache__") / f"compiled-{_digest_of_sources()}")
    try:
        return _kept(function)
    finally:
        config.CACHE_DIR = before


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Inlines a function into its callers, for what is called per candidate or per point.

    Separate calls would spend most of their time passing arrays.
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
    """A digest of all compiled sources, because numba notices changes only in a function's own file."""
    digest = hashlib.sha256()
    for source in sorted(PACKAGE.glob("*/_[!_]*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]
