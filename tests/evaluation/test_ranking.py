import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.evaluation import ranking
from nearkin.evaluation.ranking import rank_by_counting, rank_by_sorting


@pytest.mark.parametrize("few", [0, 3, 100])  # always sort keys, both, always count
@settings(max_examples=80, deadline=None)
@given(st.data())
def test_both_ways_agree_with_each_other_and_with_python(few, data):
    rows, n = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 12))
    values = st.sampled_from([0.0, 0.25, 1.0, 1e-30, float("inf")])
    block = torch.tensor(data.draw(st.lists(values, min_size=rows * n, max_size=rows * n))).reshape(rows, n)
    wanted = torch.tensor(data.draw(st.lists(st.booleans(), min_size=rows * n, max_size=rows * n))).reshape(rows, n)
    row, column = wanted.nonzero(as_tuple=True)
    kept = data.draw(st.integers(0, n))
    orders = [sorted(range(n), key=lambda c, i=i: (block[i, c].item(), c)) for i in range(rows)]
    expected = [place + 1 for i, order in enumerate(orders) for place, c in enumerate(order) if wanted[i, c]]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "FEW", few)
        for rank in (rank_by_counting, rank_by_sorting):
            ranks, lowest = rank(block, row, column, kept)
            assert ranks.tolist() == expected
            assert lowest.tolist() == [order[:kept] for order in orders]
