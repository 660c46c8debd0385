"""The interface of a vector store, so that a gallery need not know where its vectors are stored."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from nearkin.errors import UserError

Embeddings = npt.NDArray[np.float32]
# How to open a store. "create" creates it if it does not exist. "write" undoes the unfinished change of a killed
# process; "read" refuses such a store, because a search must change nothing. Every mode can put and remove items.
Mode = Literal["create", "write", "read"]


@dataclass(frozen=True)
class Entry:
    """An item of a gallery.

    Attributes:
        path: absolute path of its image file.
        label: its class; "" for none.
        size, modified: size in bytes and modification time in nanoseconds of the file when it was embedded. They show
            whether it has changed.
    """

    path: str
    label: str
    size: int
    modified: int


@dataclass(frozen=True)
class Hit:
    """An item of a search result, and the Euclidean distance of its embedding to the query's."""

    id: int
    entry: Entry
    distance: float

    @property
    def path(self) -> str:
        return self.entry.path

    @property
    def label(self) -> str:
        return self.entry.label


class ItemNotFound(UserError):
    """An item is not in the gallery, or no longer.

    >>> str(ItemNotFound(7))
    'the gallery has no item 7; it may have been removed or replaced: search again'
    """

    def __init__(self, id: int) -> None:
        super().__init__(f"the gallery has no item {id}; it may have been removed or replaced: search again")


class Store(Protocol):
    """Entries and their vectors, by id. The store assigns the ids and never uses one twice."""

    def __len__(self) -> int: ...

    def entries(self) -> dict[int, Entry]:
        """All entries by id, in ascending order."""

    def entries_of(self, ids: Sequence[int]) -> dict[int, Entry]:
        """The entries with these ids, in the given order; unknown ids are left out."""

    def counts(self) -> dict[str, int]:
        """Number of entries per label, sorted by label; "" stands for entries without a label."""

    def ids(self, k: int, label: str | None = None) -> list[int]:
        """The ids of up to k entries; if a label is given, only of entries with that label."""

    def put(self, entries: Sequence[Entry], vectors: Embeddings) -> None:
        """Adds entries with vectors (entries, dim); an entry replaces an earlier one with the same path.

        It is atomic where the store has transactions, and can be repeated where it has none.
        """

    def remove(self, ids: Collection[int]) -> None:
        """Removes entries, as atomically as `put`; unknown ids are ignored."""

    def vectors(self, ids: Sequence[int]) -> Embeddings:
        """Vectors (ids, dim), in the given order; raises `ItemNotFound` for an unknown id."""

    def search(self, queries: Embeddings, k: int, label: str | None = None) -> list[list[Hit]]:
        """Up to k hits for each query (queries, dim), nearest first; if a label is given, only entries with it."""

    def finish(self) -> str:
        """Prepares the store for fast search; returns a sentence on how it is searched and why."""

    def close(self) -> None:
        """Closes files and connections; nothing is lost."""


def in_order(found: Mapping[int, Embeddings], ids: Sequence[int], dim: int) -> Embeddings:
    """Vectors (ids, dim) in the order of the ids."""
    for id in ids:
        if id not in found:
            raise ItemNotFound(id)
    return np.array([found[id] for id in ids], np.float32).reshape(-1, dim)


def missing_items(place: object) -> UserError:
    """The error of an existing gallery without its items."""
    return UserError(f"{place}, which contains the gallery's items, is missing; restore it, or index into a new folder")


def checked(vectors: Embeddings, dim: int) -> Embeddings:
    """Checks vectors (n, dim) and converts them to what stores take: float32, contiguous, finite.

    >>> checked(np.array([[0.0, 1.0]]), 2).dtype
    dtype('float32')
    """
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    if vectors.ndim != 2 or vectors.shape[1] != dim:
        raise UserError(
            f"the store has vectors of dimension {dim}, got vectors of shape {vectors.shape}; "
            "use the model that the gallery was made with"
        )
    if not np.isfinite(vectors).all():
        raise UserError("the vectors contain NaN or infinite values; remove those items")
    return vectors


def checked_entries(entries: Sequence[Entry], vectors: Embeddings, dim: int) -> dict[str, tuple[Entry, Embeddings]]:
    """Entries with their vectors (entries, dim), by path. If a path occurs twice, the last entry counts."""
    if len(entries) != len(vectors):
        raise UserError(f"got {len(vectors)} vectors for {len(entries)} entries; give one vector per entry")
    for entry in entries:
        try:
            f"{entry.path}{entry.label}".encode()
        except UnicodeEncodeError as error:
            raise UserError(f"the path or label of {entry.path!r} is not valid Unicode; rename it") from error
    return {entry.path: (entry, row) for entry, row in zip(entries, checked(vectors, dim), strict=True)}


def checked_query(queries: Embeddings, dim: int, k: int) -> Embeddings:
    """Checks queries (queries, dim) and the number of neighbours, and converts the queries to what stores take."""
    if k < 1:
        raise UserError(f"k must be an integer >= 1, got {k}")
    return checked(queries, dim)
