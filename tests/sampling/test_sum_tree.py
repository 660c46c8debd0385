"""The sum tree against plain sums."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.sampling.sum_tree import WIDTH, SumTree


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_sums_and_places_are_those_of_the_numbers(data: st.DataObject) -> None:
    count = data.draw(st.sampled_from([1, 2, WIDTH - 1, WIDTH, WIDTH + 1, WIDTH**2, WIDTH**2 + 5, 10_000]))
    places = st.integers(0, count - 1)
    numbers = np.random.default_rng(0).integers(0, 5, count).astype(float)
    tree = SumTree(numbers)
    for place, number in data.draw(st.lists(st.tuples(places, st.integers(0, 10**6)), max_size=9)):
        numbers[place] = number
        tree.update(np.array([place]), np.array([float(number)]))
    sums = np.concatenate([[0], np.cumsum(numbers)])
    assert tree.total == sums[-1]
    starts, ends = np.sort(data.draw(st.lists(st.tuples(places, places), min_size=1)), axis=1).T
    np.testing.assert_array_equal(tree.between(starts, ends + 1), sums[ends + 1] - sums[starts])
    assert tree.between(np.array([count]), np.array([count])) == [0]
    if sums[-1]:
        target = data.draw(st.integers(0, int(sums[-1]) - 1))
        assert tree.find(target) == np.searchsorted(sums, target, "right") - 1


def test_of_a_place_that_comes_twice_the_last_number_counts() -> None:
    tree = SumTree(np.ones(3))
    tree.update(np.array([1, 0, 1]), np.array([7.0, 2.0, 5.0]))
    assert tree.total == 8


def test_sums_do_not_depend_on_the_order_of_updates() -> None:
    rng = np.random.default_rng(0)
    numbers = rng.exponential(size=5000) ** 9
    tree = SumTree(rng.exponential(size=5000) * 1e12)
    for places in np.array_split(rng.permutation(5000), 200):
        tree.update(places, numbers[places])
    for ours, theirs in zip(tree.levels, SumTree(numbers).levels, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("last", [0.0, 0.3])
def test_a_target_beyond_the_rounded_total_finds_the_last_number_above_zero(last: float) -> None:
    numbers = np.array([*np.full(200, 0.1), last, 0.0])
    assert SumTree(numbers).find(SumTree(numbers).total + 1e-12) == (200 if last else 199)
