"""Search by image: galleries, and the stores that contain their embeddings."""

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
