"""Clusters keep the numbers of an earlier clustering."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nearkin.clustering import match_clusters
from nearkin.errors import UserError

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("reassign_*.npz"))


@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: file.stem)
def test_golden_matchings(file: Path) -> None:
    case = {name: torch.from_numpy(values).long() for name, values in np.load(file).items()}
    found = match_clusters(case["curr"], case["prev"], k=int(case["prev"].max()) + 1)
    assert torch.equal(found, case["expected"])


def test_there_are_golden_matchings() -> None:
    assert len(GOLDEN) == 3


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_as_many_points_as_possible_keep_their_cluster(pairs: list[tuple[int, int]]) -> None:
    clusters, before = torch.tensor(pairs).T
    found = match_clusters(clusters, before, k=4)
    kept = int((found == before).sum())
    assert kept == max(int((torch.tensor(names)[clusters] == before).sum()) for names in permutations(range(4)))
    names = {(int(a), int(b)) for a, b in zip(clusters, found, strict=True)}
    assert len(names) == len({a for a, _ in names}) == len({b for _, b in names})  # one name for each cluster


def test_clusterings_of_different_points_are_refused() -> None:
    with pytest.raises(UserError, match="same number of points, got 2 and 3"):
        match_clusters(torch.zeros(2, dtype=torch.long), torch.zeros(3, dtype=torch.long), k=1)
