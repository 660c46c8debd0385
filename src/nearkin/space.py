"""`Space`: all embeddings of a dataset at one moment; methods, evaluation and reports read it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearkin import _mkl  # noqa: F401
from nearkin.errors import UserError


@dataclass(frozen=True, eq=False)
class Space:
    """Embeddings and their labels, computed in one pass by one model.

    Attributes:
        embeddings: (items, dim) floating point.
        labels: (items,) integers; equal labels mean the same class.
        items: (items,) indices of the rows in their dataset.
        is_query: (items,) booleans, which items are queries; None: all.
        is_gallery: (items,) booleans, which items are searched; None: all. An item is never its own neighbour.

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
                f"embeddings have shape {tuple(self.embeddings.shape)} and type {self.embeddings.dtype}; "
                "pass floating-point numbers of shape (items, dim)"
            )
        for name in ("labels", "items", "is_query", "is_gallery"):
            column = getattr(self, name)
            if column is not None and column.shape != (len(self),):
                raise UserError(
                    f"{name} has shape {tuple(column.shape)}, but there are {len(self)} embeddings; "
                    "pass one entry per embedding"
                )

    @classmethod
    def of(
        cls,
        embeddings: Tensor | npt.ArrayLike,
        labels: Tensor | npt.ArrayLike,
        is_query: Tensor | npt.ArrayLike | None = None,
        is_gallery: Tensor | npt.ArrayLike | None = None,
    ) -> Space:
        """Makes a space from tensors, arrays or lists; rows are numbered in order.

        Args:
            embeddings: (items, dim); integers become float32.
            labels: (items,) or (items, 1) numbers or strings.
            is_query: (items,) booleans, which items are queries; None: all.
            is_gallery: (items,) booleans, which items are searched; None: all.

        >>> Space.of([[0.0], [1.0], [2.0]], ["a", "b", "a"], is_query=[True, False, False]).labels.tolist()
        [0, 1, 0]
        """
        points = _points(embeddings)
        masks = (_mask(name, mask) for name, mask in (("is_query", is_query), ("is_gallery", is_gallery)))
        return cls(points, _numbers(labels), torch.arange(len(points)), *masks).to(points.device)

    def to(self, device: torch.device | str) -> Space:
        """Returns the space on another device."""
        columns = {name: column.to(device) for name, column in vars(self).items() if column is not None}
        return Space(**columns)

    def __len__(self) -> int:
        return len(self.embeddings)

    @property
    def dim(self) -> int:
        return self.embeddings.shape[1]

    @property
    def queries(self) -> Tensor:
        """Row indices of the queries."""
        return self._rows(self.is_query)

    @property
    def gallery(self) -> Tensor:
        """Row indices of the gallery."""
        return self._rows(self.is_gallery)

    @property
    def own_gallery_rows(self) -> Tensor:
        """(queries,) position of each query itself in ``gallery``; -1 if it is not in the gallery.

        >>> is_gallery = torch.tensor([False, True, True])
        >>> Space(torch.eye(3), torch.zeros(3), torch.arange(3), is_gallery=is_gallery).own_gallery_rows.tolist()
        [-1, 0, 1]
        """
        places = torch.full((len(self),), -1, device=self.embeddings.device)
        places[self.gallery] = torch.arange(len(self.gallery), device=places.device)
        return places[self.queries]

    def _rows(self, mask: Tensor | None) -> Tensor:
        device = self.embeddings.device
        return torch.arange(len(self), device=device) if mask is None else mask.to(device).nonzero().squeeze(1)


def _points(embeddings: Tensor | npt.ArrayLike) -> Tensor:
    if isinstance(embeddings, Tensor):
        points = embeddings.detach()
    else:
        try:
            array = np.asarray(embeddings)
            points = torch.as_tensor(array if isinstance(embeddings, np.ndarray) else array.astype(np.float32))
        except (TypeError, ValueError):
            raise UserError(
                "embeddings are strings or rows of unequal length; pass numbers of shape (items, dim)"
            ) from None
    return points if points.is_floating_point() or points.is_complex() else points.float()


def _numbers(labels: Tensor | npt.ArrayLike) -> Tensor:
    """Returns an integer tensor unchanged; numbers other labels in sorted order of their distinct values."""
    values = labels if isinstance(labels, Tensor) else np.asarray(labels)
    if values.ndim == 2 and values.shape[1] == 1:  # a column vector
        values = values[:, 0]
    if isinstance(values, Tensor):
        if not values.is_floating_point():
            return values
        values = values.cpu().numpy()
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise UserError(f"{int(np.isnan(values).sum())} of {values.size} labels are NaN; give every item a label")
    numbers = np.unique(values, return_inverse=True)[1]
    return torch.from_numpy(numbers.reshape(values.shape))


def _mask(name: str, mask: Tensor | npt.ArrayLike | None) -> Tensor | None:
    if mask is None:
        return None
    found = mask if isinstance(mask, Tensor) else torch.as_tensor(np.asarray(mask))
    if found.dtype != torch.bool:
        raise UserError(f"{name} has type {found.dtype}; pass True or False for each embedding")
    return found
