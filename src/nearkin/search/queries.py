"""Queries of a gallery: files, folders, images or embeddings; one or many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from nearkin.data.folder import images_below
from nearkin.data.items import ImageFiles
from nearkin.data.unreadable import find_unreadable
from nearkin.errors import UserError
from nearkin.models import Embedder
from nearkin.models.inputs import Item
from nearkin.search.store import Embeddings

Queries = Item | Sequence[Item]


@dataclass(frozen=True)
class EmbeddedQueries:
    """Queries, ready to be searched in a store.

    Attributes:
        names: names to show in results.
        files: the file of each query; None if it has none.
        embeddings: (queries, dim).
        single: whether a single query was given, not a list.
    """

    names: list[str]
    files: list[Path | None]
    embeddings: Embeddings
    single: bool


def embed_queries(queries: Queries, model: Embedder) -> EmbeddedQueries:
    """Embeds images, and all images below folders; keeps embeddings, a float array (dim,) or (n, dim), as they are."""
    if _are_embeddings(queries):
        found = _array(queries)
        kind, images = "embedding", None
    else:
        kind, images = "image", _without_folders(queries)
        _check_files(images)
        found = model.encode(images)
    embeddings = np.atleast_2d(found)
    given = images if isinstance(images, list) else [images] * len(embeddings)
    return EmbeddedQueries(
        names=[_name(image) or f"{kind} {number}" for number, image in enumerate(given)],
        files=[image if isinstance(image, Path) else None for image in given],
        embeddings=embeddings,
        single=found.ndim == 1,
    )


def _check_files(images: Any) -> None:
    """Raises for a file that cannot be decoded within the limits of `DecoderPool`: `encode` itself has none."""
    files = [each for each in (images if isinstance(images, list) else [images]) if isinstance(each, Path)]
    if found := find_unreadable(ImageFiles(files), remember=False):
        raise UserError(f"{found[0]}; check this file or leave it out")


def _are_embeddings(queries: Any) -> bool:
    """Floats with at most two dimensions; an image has three."""
    if isinstance(queries, list | tuple):
        return len(queries) > 0 and all(_are_embeddings(query) and query.ndim == 1 for query in queries)
    if isinstance(queries, Tensor):
        return queries.is_floating_point() and queries.ndim <= 2
    return isinstance(queries, np.ndarray) and queries.dtype.kind == "f" and queries.ndim <= 2


def _array(embeddings: Any) -> Embeddings:
    if isinstance(embeddings, list | tuple):
        return np.stack([_array(embedding) for embedding in embeddings])
    return np.asarray(embeddings.detach().float().cpu() if isinstance(embeddings, Tensor) else embeddings, np.float32)


def _without_folders(queries: Any) -> Any:
    if isinstance(queries, str | Path):
        path = Path(queries).expanduser()
        return _images_in(path) if path.is_dir() else path
    if not isinstance(queries, list | tuple):
        return queries
    images: list[Any] = []
    for image in map(_without_folders, queries):
        images += image if isinstance(image, list) else [image]
    if not images:
        raise UserError("no queries given; give at least one image")
    return images


def _images_in(folder: Path) -> list[Path]:
    if found := images_below(folder):
        return found
    raise UserError(f"the folder {folder} contains no images; choose a folder with query images")


def _name(image: Any) -> str:
    return str(image) if isinstance(image, Path) else getattr(image, "filename", "")
