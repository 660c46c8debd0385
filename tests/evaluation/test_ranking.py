import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.evaluation import ranking
from nearkin.evaluation.ranking import rank_by_comparing, rank_by_counting, rank_by_sorting


@pytest.mark.parametrize("few", [0, 3, 100])  # always sort keys, both, nearly always count
@settings(max_examples=80, deadline=None)
@given(st.data())
def test_all_ways_agree_with_each_other_and_with_python(few, data):
    rows, n = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 40))
    values = st.sampled_from([0.0, 0.25, 1.0, 1e-30, float("inf")])
    block = torch.tensor(data.draw(st.lists(values, min_size=rows * n, max_size=rows * n))).reshape(rows, n)
    often = data.draw(st.sampled_from([0.1, 0.5]))
    wanted = torch.rand(rows, n, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 99)))) < often
    row, column = wanted.nonzero(as_tuple=True)
    kept = data.draw(st.integers(0, n))
    orders = [sorted(range(n), key=lambda c, i=i: (block[i, c].item(), c)) for i in range(rows)]
    expected = [place + 1 for i, order in enumerate(orders) for place, c in enumerate(order) if wanted[i, c]]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "FEW", few)
        for rank in (rank_by_counting, rank_by_sorting, rank_by_comparing):
            ranks, lowest = rank(block, row, column, kept)
            assert ranks.tolist() == expected
            assert lowest.tolist() == [order[:kept] for order in orders]


def test_many_wanted_columns_are_not_compared_one_by_one(monkeypatch):
    block = torch.rand(3, 20, generator=torch.Generator().manual_seed(0))
    row, column = torch.ones(3, 20).nonzero(as_tuple=True)
    monkeypatch.setattr(ranking, "MANY", 19)
    monkeypatch.setattr(ranking, "lowest_columns", None)  # comparing would call it
    ranks, lowest = rank_by_comparing(block, row, column, kept=4)
    assert ranks.tolist() == list(range(1, 21)) * 3
    assert torch.equal(lowest, block.argsort(1)[:, :4])
