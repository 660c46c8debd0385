"""A space knows which of its rows search, which are searched, and where a query meets itself."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

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
