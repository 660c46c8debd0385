"""What a store of vectors does for a gallery: one interface, so that the gallery does not know where they are kept."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from nearkin.errors import UserError

Embeddings = npt.NDArray[np.float32]
# How a store is opened: "create" makes it where there is none; "write" undoes what a killed process left half done, and
# "read" refuses it, because a search changes nothing. Items can be put and removed in any of them.
Mode = Literal["create", "write", "read"]


@dataclass(frozen=True)
class Entry:
    """An item of a gallery.

    Attributes:
        path: of its image file, absolute.
        label: its class; empty where it has none.
        size, modified: of the file when it was embedded, in bytes and nanoseconds: they tell whether it has changed.
    """

    path: str
    label: str
    size: int
    modified: int


@dataclass(frozen=True)
class Hit:
    """An item that was found, and its Euclidean distance from the query in the embedding."""

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
    """An item is not, or no longer, in the gallery.

    >>> str(ItemNotFound(7))
    'the gallery has no item 7; it may have been removed or replaced: search again'
    """

    def __init__(self, id: int) -> None:
        super().__init__(f"the gallery has no item {id}; it may have been removed or replaced: search again")


class Store(Protocol):
    """Entries and their vectors, by ids that the store gives and never gives twice."""

    def __len__(self) -> int: ...

    def entries(self) -> dict[int, Entry]:
        """All entries, by id, ascending."""

    def entries_of(self, ids: Sequence[int]) -> dict[int, Entry]:
        """The entries of these ids, in the order asked for; ids that are not there are left out."""

    def counts(self) -> dict[str, int]:
        """How many entries each label has, by name; the empty label is that of entries without one."""

    def ids(self, k: int, label: str | None = None) -> list[int]:
        """The ids of k entries, or of all where there are fewer; only of one label if it is given."""

    def put(self, entries: Sequence[Entry], vectors: Embeddings) -> None:
        """Adds entries with their vectors (entries, dim); one whose path is there already is replaced. All or none."""

    def remove(self, ids: Collection[int]) -> None:
        """Removes entries; ids that are not there are passed over. All or none."""

    def vectors(self, ids: Sequence[int]) -> Embeddings:
        """(ids, dim), in the order asked for; raises `ItemNotFound`."""

    def search(self, queries: Embeddings, k: int, label: str | None = None) -> list[list[Hit]]:
        """The k nearest of every query (queries, dim), nearest first; fewer where there are fewer with that label."""

    def finish(self) -> str:
        """Prepares what is stored for fast searches, and says in one sentence how it is searched and why."""

    def close(self) -> None:
        """Releases files and connections; nothing is lost."""


def in_order(found: Mapping[int, Embeddings], ids: Sequence[int], dim: int) -> Embeddings:
    """Vectors (ids, dim) that were found, in the order asked for."""
    for id in ids:
        if id not in found:
            raise ItemNotFound(id)
    return np.array([found[id] for id in ids], np.float32).reshape(-1, dim)


def missing_items(place: object) -> UserError:
    """Of a gallery that was made before."""
    return UserError(f"{place}, which holds the gallery's items, is missing; put it back, or index into a new folder")


def checked(vectors: Embeddings, dim: int) -> Embeddings:
    """Vectors (n, dim) as every store takes them: float32, row after row, finite.

    >>> checked(np.array([[0.0, 1.0]]), 2).dtype
    dtype('float32')
    """
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    if vectors.ndim != 2 or vectors.shape[1] != dim:
        raise UserError(
            f"the store holds vectors of {dim} numbers and cannot take the shape {vectors.shape}; "
            "use the model that the gallery was made with"
        )
    if not np.isfinite(vectors).all():
        raise UserError("the vectors contain NaN or infinite values; leave those items out")
    return vectors


def checked_entries(entries: Sequence[Entry], vectors: Embeddings, dim: int) -> dict[str, tuple[Entry, Embeddings]]:
    """Entries with their vectors (entries, dim), by path: the last counts where a path comes twice."""
    if len(entries) != len(vectors):
        raise UserError(f"{len(entries)} entries came with {len(vectors)} vectors; give each entry one")
    for entry in entries:
        try:
            f"{entry.path}{entry.label}".encode()
        except UnicodeEncodeError as error:
            raise UserError(f"the name {entry.path!r} is not valid Unicode; rename the file") from error
    return {entry.path: (entry, row) for entry, row in zip(entries, checked(vectors, dim), strict=True)}


def checked_query(queries: Embeddings, dim: int, k: int) -> Embeddings:
    """Queries (queries, dim) as every store takes them, where k neighbours of each are wanted."""
    if k < 1:
        raise UserError(f"k={k} neighbours cannot be found; ask for 1 or more")
    return checked(queries, dim)
