"""A space: everything embedded at one moment, the one value that refreshing, evaluating and reporting read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearkin.errors import UserError


@dataclass(frozen=True, eq=False)
class Space:
    """Embeddings with their labels, computed in one pass at one stage of learning.

    Attributes:
        embeddings: (items, dim) floating point.
        labels: (items,) integers; equal numbers mean the same class.
        items: (items,) positions of the rows in the dataset they came from.
        is_query, is_gallery: (items,) booleans, or None where every item is both; an item is never its own
            neighbour.

    >>> space = Space.of(torch.eye(2), torch.tensor([0, 1]))
    >>> len(space), space.dim
    (2, 2)
    """

    embeddings: Tensor
    labels: Tensor
    items: Tensor
    is_query: Tensor | None = None
    is_gallery: Tensor | None = None

    def __post_init__(self) -> None:
        if self.embeddings.ndim != 2 or not self.embeddings.is_floating_point():
            raise UserError(
                f"a space needs embeddings of shape (items, dim) in floating point, "
                f"not {tuple(self.embeddings.shape)} {self.embeddings.dtype}"
            )
        for name in ("labels", "items", "is_query", "is_gallery"):
            column = getattr(self, name)
            if column is not None and column.shape != (len(self),):
                raise UserError(f"{name} has shape {tuple(column.shape)}, but there are {len(self)} embeddings")

    @classmethod
    def of(cls, embeddings: Tensor | npt.ArrayLike, labels: Tensor | npt.ArrayLike) -> Space:
        """A space from tensors or arrays, the rows numbered as they come; labels may be words.

        >>> Space.of([[0.0], [1.0], [2.0]], ["a", "b", "a"]).labels.tolist()
        [0, 1, 0]
        """
        if not isinstance(labels, Tensor):
            labels = torch.from_numpy(np.unique(np.asarray(labels), return_inverse=True)[1])
        points = torch.as_tensor(embeddings)
        return cls(points, labels, torch.arange(len(points), device=points.device))

    def to(self, device: torch.device | str) -> Space:
        """The same space on another device."""
        columns = {name: column.to(device) for name, column in vars(self).items() if column is not None}
        return Space(**columns)

    def __len__(self) -> int:
        return len(self.embeddings)

    @property
    def dim(self) -> int:
        return self.embeddings.shape[1]

    @property
    def queries(self) -> Tensor:
        """Row numbers of the queries."""
        return self._rows(self.is_query)

    @property
    def gallery(self) -> Tensor:
        """Row numbers of what is searched."""
        return self._rows(self.is_gallery)

    @property
    def own_gallery_rows(self) -> Tensor:
        """(queries,) where in ``gallery`` each query itself stands; -1 where it is not there.

        >>> searched = torch.tensor([False, True, True])
        >>> Space(torch.eye(3), torch.zeros(3), torch.arange(3), is_gallery=searched).own_gallery_rows.tolist()
        [-1, 0, 1]
        """
        places = torch.full((len(self),), -1, device=self.embeddings.device)
        places[self.gallery] = torch.arange(len(self.gallery), device=places.device)
        return places[self.queries]

    def _rows(self, mask: Tensor | None) -> Tensor:
        device = self.embeddings.device
        return torch.arange(len(self), device=device) if mask is None else mask.to(device).nonzero().squeeze(1)
