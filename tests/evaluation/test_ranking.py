import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.retrieval import nearest
from reference.spaces import DEVICES, difficult_points

from nearkin.clustering import distances
from nearkin.clustering.distances import Distances
from nearkin.evaluation import ranking
from nearkin.evaluation.ranking import count_by_comparing, count_by_row, rank, rank_by_sorting


@pytest.mark.parametrize("few", [0, 3, 100])  # always sort keys, both, nearly always count
@pytest.mark.parametrize("many", [1, 100])  # sort the block, compare it
@settings(max_examples=50, deadline=None)
@given(st.data())
def test_all_counting_implementations_agree_with_python(few, many, data):
    rows, n = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 40))
    values = st.sampled_from([-0.0, 0.0, 0.25, 1.0, 1e-30, float("inf")])
    squares = torch.tensor(data.draw(st.lists(values, min_size=rows * n, max_size=rows * n))).reshape(rows, n)
    row = torch.tensor(sorted(data.draw(st.lists(st.integers(0, rows - 1), max_size=9))), dtype=torch.long)
    bounds = st.lists(st.sampled_from([-float("inf"), 1e-30, 0.2, 0.25, 1.0]), min_size=len(row), max_size=len(row))
    low = torch.tensor(data.draw(bounds))
    high = torch.tensor(data.draw(bounds)).clamp(min=0).maximum(low)
    kept = data.draw(st.integers(0, n))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "FEW", few)
        patch.setattr(ranking, "MANY", many)
        for count in (count_by_row, count_by_comparing):
            below, up_to, lowest = count(squares, row, low, high, kept)
            assert below.tolist() == [(squares[i] < least).sum() for i, least in zip(row, low, strict=True)]
            assert up_to.tolist() == [(squares[i] <= most).sum() for i, most in zip(row, high, strict=True)]
            assert torch.equal(lowest, squares.argsort(dim=1, stable=True)[:, :kept])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("float32", [0.0, 1 / 8, 1e9])  # the row again wherever there is doubt, sometimes, never
@pytest.mark.parametrize("float64", [0.0, 1 / 8, 1e9])
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_ranks_are_those_of_exact_distances(device, float32, float64, data):
    x = data.draw(difficult_points())
    n = len(x)
    own = torch.tensor(data.draw(st.lists(st.integers(-1, n - 1), min_size=n, max_size=n)))
    kept = data.draw(st.integers(0, n - 1))
    often = torch.rand(n, n, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 99)))) < 0.3
    often[own >= 0, own[own >= 0]] = False
    row, column = often.nonzero(as_tuple=True)
    block = Distances(x.to(device)).block(x.to(device))
    block.exclude(own.to(device))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distances, "CROWDED", {torch.float32: float32, torch.float64: float64})
        ranks, lowest = rank(block, row.to(device), column.to(device), kept)
    exact = x.double().numpy()
    orders = [nearest(exact[i : i + 1], exact, n - int(own[i] >= 0), [int(own[i])])[1][0].tolist() for i in range(n)]
    assert ranks.tolist() == [1 + r for i, order in enumerate(orders) for r, c in enumerate(order) if often[i, c]]
    np.testing.assert_array_equal(lowest.cpu(), [order[:kept] for order in orders])


def test_many_wanted_columns_are_not_compared_one_by_one(monkeypatch):
    squares = torch.rand(3, 20, generator=torch.Generator().manual_seed(0))
    row, column = torch.ones(3, 20).nonzero(as_tuple=True)
    monkeypatch.setattr(ranking, "MANY", 19)
    monkeypatch.setattr(ranking, "lowest_columns", None)  # comparing would call it
    wanted = squares[row, column]
    below, up_to, lowest = count_by_comparing(squares, row, wanted, wanted, kept=4)
    assert torch.equal(below + 1, up_to)
    assert up_to.sort().values.tolist() == sorted(list(range(1, 21)) * 3)
    assert torch.equal(lowest, squares.argsort(1)[:, :4])


def test_a_stable_sort_gives_ranks_and_lowest():
    ranks, lowest = rank_by_sorting(torch.zeros(2, 4), torch.tensor([0, 0, 1]), torch.tensor([1, 3, 2]), kept=2)
    assert ranks.tolist() == [2, 4, 3]
    assert lowest.tolist() == [[0, 1], [0, 1]]
