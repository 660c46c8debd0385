"""Attribute concentration for the extra columns of a dataset.

A boolean column (true/false, yes/no, 1/0) is one attribute, which an item has or does not have. In any other column,
each distinct value is an attribute. An empty cell means that the value is unknown: for this column, such items are
neither queries nor neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearkin.errors import UserError
from nearkin.evaluation.attributes import HAS_NONE, AttributeConcentration, shares_among_neighbours
from nearkin.space import Space

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
ALL = "all attributes"
YES, NO = {"1", "1.0", "true", "yes"}, {"0", "0.0", "false", "no"}
Column = npt.NDArray[Any]


def column_concentrations(
    space: Space, columns: Mapping[str, Column], sizes: Sequence[int] = SIZES
) -> dict[str, AttributeConcentration]:
    """The concentration of each column's attributes and, under ``ALL`` if there are several, of all columns together.

    Columns that are known for the same items share one neighbour search. Columns are skipped if no two items have the
    same value, if no query has a value, or if they have several dimensions.

    Args:
        space: its queries search its gallery; labels are not used.
        columns: (items,) booleans, numbers or strings, by name; "" or NaN if a value is unknown.
        sizes: neighbourhood sizes; sizes larger than the number of items are skipped.

    >>> line = Space.of([[0.0], [1.0], [3.0], [7.0]], [0, 0, 1, 1])
    >>> found = column_concentrations(line, {"kind": np.array(["a", "a", "b", "b"])}, sizes=[1, 2, 4])
    >>> found["kind"].means
    {1: 0.75, 2: 0.375}
    """
    by_known_items: dict[bytes, dict[str, tuple[Tensor, int]]] = {}
    for name, column in columns.items():
        if column.ndim == 1:
            numbers, count, known = _numbered(column)
            by_known_items.setdefault(known.tobytes(), {})[name] = numbers, count
    found: dict[str, AttributeConcentration] = {}
    for mask, numbered in by_known_items.items():
        rows = torch.from_numpy(np.flatnonzero(np.frombuffer(mask, dtype=np.bool_)))
        selected = {name: (numbers[rows], count) for name, (numbers, count) in numbered.items()}
        found |= _concentrations(_rows(space, rows), selected, sizes)
    if not found:
        raise UserError("no column has a value that two items share; check the extra columns of the data")
    found = {name: found[name] for name in columns if name in found}
    return found | {ALL: _together(list(found.values()))} if len(found) > 1 else found


def _numbered(column: Column) -> tuple[Tensor, int, npt.NDArray[np.bool_]]:
    """(items,) the attribute of each item, or HAS_NONE; the number of attributes; (items,) whether it is known."""
    missing = np.isnan(column) if np.issubdtype(column.dtype, np.floating) else np.zeros(len(column), dtype=np.bool_)
    words, numbers = np.unique(np.where(missing, "", column.astype(np.str_)), return_inverse=True)
    known = words != ""
    lower = np.array([word.lower() for word in words.tolist()])
    if set(lower[known].tolist()) <= YES | NO:
        attribute = np.where(np.isin(lower, list(YES)), 0, HAS_NONE)
    else:
        attribute = np.where(known, known.cumsum() - 1, HAS_NONE)
    return torch.from_numpy(attribute[numbers]), int(attribute.max(initial=HAS_NONE)) + 1, known[numbers]


def _rows(space: Space, rows: Tensor) -> Space:
    columns = {name: column[rows.to(column.device)] for name, column in vars(space).items() if column is not None}
    return Space(**columns)


def _concentrations(
    space: Space, numbered: Mapping[str, tuple[Tensor, int]], sizes: Sequence[int]
) -> dict[str, AttributeConcentration]:
    """The concentrations of columns that are known for all items of the space, with one neighbour search."""
    queries, gallery = space.queries.cpu(), space.gallery.cpu()
    fitting = [size for size in sizes if size <= len(gallery) - int(torch.isin(queries, gallery).any())]
    informative = {name: (n, count) for name, (n, count) in numbered.items() if _is_informative(n, queries)}
    if not fitting or not informative:
        return {}
    ends = np.cumsum([count for _, count in informative.values()])
    starts = ends - [count for _, count in informative.values()]
    shifted = [
        n.where(n == HAS_NONE, n + start) for (n, _), start in zip(informative.values(), starts.tolist(), strict=True)
    ]
    together = shares_among_neighbours(space, torch.stack(shifted), int(ends[-1]), fitting)
    return {
        name: AttributeConcentration(
            together.sizes, together.items[start:end], together.shares[start:end], together.chances[start:end]
        )
        for name, start, end in zip(informative, starts.tolist(), ends.tolist(), strict=True)
    }


def _is_informative(numbers: Tensor, queries: Tensor) -> bool:
    """Whether at least one query has one of the column's attributes, and at least two items share one."""
    has = numbers[numbers != HAS_NONE]
    return bool((numbers[queries] != HAS_NONE).any()) and len(has.unique()) < len(has)


def _together(found: Sequence[AttributeConcentration]) -> AttributeConcentration:
    sizes = min((each.sizes for each in found), key=len)
    return AttributeConcentration(
        sizes,
        torch.cat([each.items for each in found]),
        torch.cat([each.shares[:, : len(sizes)] for each in found]),
        torch.cat([each.chances for each in found]),
    )
