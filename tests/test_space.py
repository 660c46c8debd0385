"""A space knows its queries, its gallery, and the position of each query in the gallery."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nearkin.errors import UserError
from nearkin.space import Space


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=12), st.booleans(), st.booleans())
def test_a_query_finds_its_own_row_in_the_gallery(
    roles: list[tuple[bool, bool]], all_search: bool, all_are_searched: bool
) -> None:
    queries = [row for row, (searches, _) in enumerate(roles) if searches or all_search]
    gallery = [row for row, (_, is_searched) in enumerate(roles) if is_searched or all_are_searched]
    is_query, is_gallery = torch.tensor(roles).T
    space = Space(
        torch.zeros(len(roles), 1),
        torch.zeros(len(roles)),
        torch.arange(len(roles)),
        None if all_search else is_query,
        None if all_are_searched else is_gallery,
    )
    assert (space.queries.tolist(), space.gallery.tolist()) == (queries, gallery)
    assert space.own_gallery_rows.tolist() == [gallery.index(row) if row in gallery else -1 for row in queries]


@pytest.mark.parametrize(
    "embeddings",
    [[[0, 1], [2, 3], [4, 5]], np.arange(6).reshape(3, 2), torch.arange(6.0, requires_grad=True).reshape(3, 2)],
    ids=["list", "whole numbers", "with a gradient"],
)
@pytest.mark.parametrize(
    "labels",
    [["b", "a", "b"], np.array([7, 3, 7]), [[7], [3], [7]], torch.tensor([1.5, 0.5, 1.5]), [True, False, True]],
    ids=["words", "array", "column", "float", "bool"],
)
def test_a_space_is_made_from_tensors_arrays_and_lists(embeddings: Any, labels: Any) -> None:
    space = Space.of(embeddings, labels, is_query=[True, False, True], is_gallery=np.array([False, True, True]))
    assert space.embeddings.tolist() == [[0, 1], [2, 3], [4, 5]] and not space.embeddings.requires_grad
    assert space.labels.tolist() == [1, 0, 1]
    assert space.queries.tolist() == [0, 2] and space.gallery.tolist() == [1, 2]


def test_float64_and_tensor_labels_are_unchanged() -> None:
    space = Space.of(np.eye(2), torch.tensor([5, 9]))
    assert space.embeddings.dtype == torch.float64 and space.labels.tolist() == [5, 9]


@pytest.mark.parametrize(
    ("embeddings", "labels", "masks", "sentence"),
    [
        (
            [0.0, 1.0],
            [0, 1],
            {},
            r"embeddings have shape \(2,\) and type torch.float32; pass floating-point",
        ),
        (np.zeros((2, 3, 4)), [0, 1], {}, r"embeddings have shape \(2, 3, 4\)"),
        ([[1.0, 2.0], [1.0]], [0, 1], {}, "embeddings are strings or rows of unequal length; pass numbers of shape"),
        ([["a"], ["b"]], [0, 1], {}, "embeddings are strings or rows of unequal length"),
        (np.eye(2), [0, 1, 2], {}, r"labels has shape \(3,\), but there are 2 embeddings; pass one entry per"),
        (np.eye(2), [0.0, np.nan], {}, "1 of 2 labels are NaN; give every item a label"),
        (np.eye(2), [0, 1], {"is_query": [True]}, r"is_query has shape \(1,\), but there are 2 embeddings"),
        (
            np.eye(2),
            [0, 1],
            {"is_gallery": [0, 1]},
            "is_gallery has type torch.int64; pass True or False for each",
        ),
    ],
)
def test_invalid_arguments_give_one_sentence(embeddings: Any, labels: Any, masks: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Space.of(embeddings, labels, **masks)
