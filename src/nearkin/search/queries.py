"""What a gallery can be asked with: files, folders, images, embeddings; one or many."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
from PIL import Image
from torch import Tensor

from nearkin.data.folder import images_below
from nearkin.errors import UserError
from nearkin.models import Embedder
from nearkin.search.store import Embeddings

Query = str | Path | Image.Image | npt.NDArray[np.generic] | Tensor


@dataclass(frozen=True)
class EmbeddedQueries:
    """Queries as a store takes them.

    Attributes:
        names: as results show them.
        files: None for those that are not files.
        embeddings: (queries, dim).
        single: whether one query was given, not a list, a folder or an array of several.
    """

    names: list[str]
    files: list[Path | None]
    embeddings: Embeddings
    single: bool


def embed_queries(queries: Any, model: Embedder) -> EmbeddedQueries:
    """Embeds images; takes embeddings as they are.

    Args:
        queries: a file, a folder (all images below it), a Pillow image, a uint8 array (h, w[, 3]) of one image or
            (n, h, w[, 3]) of several; embeddings, a float array (dim,) or (n, dim); or a list of images or embeddings.
    """
    alone = isinstance(queries, str | Path | Image.Image | np.ndarray | Tensor)
    given = [_plain(query) for query in ([queries] if alone else queries)]
    single = alone and _is_one(given[0])
    vectors = [np.atleast_2d(query) for query in given if _is_embedded(query)]
    if vectors and len(vectors) == len(given):
        embeddings = np.concatenate(vectors).astype(np.float32)
        count = len(embeddings)
        return EmbeddedQueries([f"embedding {i}" for i in range(count)], [None] * count, embeddings, single)
    images = [image for each in given for image in _images(each)]
    if not images:
        raise UserError("there are no queries; give at least one image")
    return EmbeddedQueries(
        names=[_name(image, place) for place, image in enumerate(images)],
        files=[image if isinstance(image, Path) else None for image in images],
        embeddings=model.encode(images),
        single=single,
    )


def _plain(query: Any) -> Path | Image.Image | npt.NDArray[Any]:
    if isinstance(query, str | Path):
        return Path(query).expanduser()
    if isinstance(query, Image.Image):
        return query
    return query.detach().cpu().numpy() if isinstance(query, Tensor) else np.asarray(query)


def _is_one(query: Path | Image.Image | npt.NDArray[Any]) -> bool:
    """Not a folder, nor a stack of images or embeddings."""
    if isinstance(query, np.ndarray):
        return query.ndim == 1 if _is_embedded(query) else query.ndim == 2 or query.shape[2:] == (3,)
    return not (isinstance(query, Path) and query.is_dir())


def _is_embedded(query: object) -> TypeGuard[npt.NDArray[Any]]:
    return isinstance(query, np.ndarray) and query.dtype.kind == "f" and query.ndim in (1, 2)


def _images(query: Path | Image.Image | npt.NDArray[Any]) -> list[Path | Image.Image]:
    if isinstance(query, np.ndarray):
        if query.dtype != np.uint8 or query.ndim not in (2, 3, 4):
            raise UserError(
                f"an array of {query.dtype} with the shape {query.shape} is not an image; give images as uint8 "
                "(h, w, 3), or embeddings alone as floats (n, dim): gallery.model.encode(...) makes them"
            )
        return [Image.fromarray(image) for image in (query[None] if _is_one(query) else query)]
    if _is_one(query):
        return [query]
    assert isinstance(query, Path)
    if found := images_below(query):
        return [*found]
    raise UserError(f"the folder {query} holds no images to search with")


def _name(image: Path | Image.Image, place: int) -> str:
    return str(image) if isinstance(image, Path) else getattr(image, "filename", "") or f"image {place}"
