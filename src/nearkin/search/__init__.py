"""Search by image: galleries, and the stores that contain their embeddings."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nearkin.search.folder import open_store
    from nearkin.search.gallery import Gallery
    from nearkin.search.results import Calibration, IndexResult, MatchResult, SearchResult
    from nearkin.search.store import Entry, Hit, Store

__all__ = [
    "Calibration",
    "Entry",
    "Gallery",
    "Hit",
    "IndexResult",
    "MatchResult",
    "SearchResult",
    "Store",
    "open_store",
]

# Imported on first use, so that commands can check a gallery without torch.
_HOME = {
    "folder": ["open_store"],
    "gallery": ["Gallery"],
    "results": ["Calibration", "IndexResult", "MatchResult", "SearchResult"],
    "store": ["Entry", "Hit", "Store"],
}


def __getattr__(name: str) -> Any:
    for module, names in _HOME.items():
        if name in names:
            return getattr(import_module(f"nearkin.search.{module}"), name)
    raise AttributeError(f"module 'nearkin.search' has no attribute '{name}'")
