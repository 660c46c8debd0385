"""Compiles functions with numba, and caches the result on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba

PACKAGE = Path(__file__).parents[1]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a function on its first call, which takes seconds; caches the result if a cache folder is writable."""
    config: Any = numba.config
    before = config.CACHE_DIR
    config.CACHE_DIR = str(Path(before or PACKAGE / "__pycache__") / f"compiled-{_digest_of_sources()}")
    try:
        return _cached(function)
    finally:
        config.CACHE_DIR = before


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Inlines a function that is called per candidate or per point: passing arrays would take most of the time."""
    part: Callable[..., Any] = numba.njit(inline="always")(function)
    return part


def _cached(function: Callable[..., Any]) -> Callable[..., Any]:
    try:
        cached: Callable[..., Any] = numba.njit(cache=True)(function)
    except RuntimeError:  # no cache folder is writable
        cached = numba.njit(function)
    return cached


@cache
def _digest_of_sources() -> str:
    """A digest of all compiled sources, because numba only detects changes in a function's own file."""
    digest = hashlib.sha256()
    for source in sorted(PACKAGE.glob("*/_[!_]*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]
