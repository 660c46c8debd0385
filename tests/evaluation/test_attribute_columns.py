"""Columns of a dataset as attributes: equal to loops over one column at a time, among the known items."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import attributes as reference

from nearkin.errors import UserError
from nearkin.evaluation.attribute_columns import ALL, column_concentrations
from nearkin.space import Space

TRUE = {"1", "true", "yes"}


def a_space(x, is_query=None, is_gallery=None):
    return Space(x, torch.zeros(len(x), dtype=torch.long), torch.arange(len(x)), is_query, is_gallery)


def mean_share(space, column, size):
    """The mean over all pairs of a query and one of its attributes, with loops; None if there are none."""
    known = [i for i, value in enumerate(column) if value != ""]
    values = {value.lower() for value in column} - {""}
    if values <= TRUE | {"0", "false", "no"}:
        table = np.array([[value.lower() in TRUE] for value in column])
    else:
        table = np.array([[value == other for other in sorted(set(column) - {""})] for value in column])
    queries, gallery = ([i for i in rows.tolist() if i in known] for rows in (space.queries, space.gallery))
    if len(gallery) - bool(set(queries) & set(gallery)) < size:
        return None
    found = reference.concentration(space.embeddings.numpy(), table, size, queries, gallery)
    items, shares, _ = (np.array(part) for part in zip(*found, strict=True))
    return np.nansum(items * shares) / items.sum() if items.sum() else None


def tells(column):
    """Whether two items have the same attribute."""
    yes = [value for value in column if value != ""]
    if {value.lower() for value in yes} <= TRUE | {"0", "false", "no"}:
        yes = [value.lower() in TRUE for value in yes]
        return sum(yes) > 1
    return len(set(yes)) < len(yes)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_every_column_is_measured_as_if_it_were_alone(data):
    n = data.draw(st.integers(3, 14))
    numbers = st.lists(st.integers(-3, 3), min_size=2 * n, max_size=2 * n)
    x = torch.tensor(data.draw(numbers)).float().reshape(n, 2)
    masks = st.none() | st.lists(st.booleans(), min_size=n, max_size=n).map(torch.tensor)
    space = a_space(x, data.draw(masks), data.draw(masks))
    words = [["1", "0"], ["Yes", "no", ""], ["a", "b", "c"], ["a", "b", ""], ["x", "1", "0"]]
    columns = {
        str(i): np.array(data.draw(st.lists(st.sampled_from(kind), min_size=n, max_size=n)))
        for i, kind in enumerate(words)
    }
    expected = {
        name: {size: mean_share(space, column, size) for size in (1, 3)}
        for name, column in columns.items()
        if tells(column.tolist())
    }
    expected = {name: {k: v for k, v in shares.items() if v is not None} for name, shares in expected.items()}
    expected = {name: shares for name, shares in expected.items() if shares}
    if not expected:
        with pytest.raises(UserError, match="no column has a value"):
            column_concentrations(space, columns, sizes=[1, 3])
        return
    found = column_concentrations(space, columns, sizes=[1, 3])
    assert {name: each.means for name, each in found.items() if name != ALL} == {
        name: pytest.approx(shares) for name, shares in expected.items()
    }


def test_all_attributes_are_the_mean_over_items_and_attributes():
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    rng = np.random.default_rng(0)
    columns = {"rare": rng.random(60) < 0.2, "kind": rng.choice(["a", "b", "c"], 60)}
    found = column_concentrations(a_space(x), columns)
    assert found[ALL].sizes == (1, 2, 4, 8, 16, 32)  # what 60 items allow
    weights = np.array([columns["rare"].sum(), 60])
    for size in found[ALL].sizes:
        shares = [found["rare"].means[size], found["kind"].means[size]]
        assert found[ALL].means[size] == pytest.approx(np.average(shares, weights=weights))
    chances = [found["rare"].chance, found["kind"].chance]
    assert found[ALL].chance == pytest.approx(np.average(chances, weights=weights))


def test_booleans_and_their_spellings_are_the_same():
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(1))
    has = np.arange(30) % 3 == 0
    spellings = {"bool": has, "int": has.astype(int), "word": np.where(has, "True", "False")}
    means = [each.means for name, each in column_concentrations(a_space(x), spellings).items() if name != ALL]
    assert means[0] == means[1] == means[2]


def test_one_search_serves_columns_that_are_known_for_the_same_items(monkeypatch):
    from nearkin.evaluation import attributes

    searches = []
    search = attributes.nearest_neighbours
    monkeypatch.setattr(attributes, "nearest_neighbours", lambda *a: searches.append(len(a[0])) or search(*a))
    rng = np.random.default_rng(0)
    full = {name: rng.choice(["a", "b"], 40) for name in ("one", "two")}
    partly = {name: np.where(np.arange(40) < 25, rng.choice(["a", "b"], 40), "") for name in ("three", "four")}
    found = column_concentrations(a_space(torch.randn(40, 2)), full | partly)
    assert sorted(searches) == [25, 40]
    assert list(found) == ["one", "two", "three", "four", ALL]
    assert found["three"].items.sum() == 25


def test_uninformative_columns_are_skipped():
    columns = {
        "name": np.array([f"item{i}" for i in range(6)]),
        "never": np.zeros(6, dtype=bool),
        "wide": np.zeros((6, 2)),
        "empty": np.array([""] * 6),
    }
    with pytest.raises(UserError, match="no column has a value that two items share"):
        column_concentrations(a_space(torch.randn(6, 2)), columns)
    found = column_concentrations(a_space(torch.randn(6, 2)), columns | {"kind": np.array(list("aabbcc"))})
    assert list(found) == ["kind"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_cuda_the_shares_are_the_same():
    space = a_space(torch.randn(50, 4, generator=torch.Generator().manual_seed(0)))
    columns = {"kind": np.arange(50) % 3, "partly": np.where(np.arange(50) % 2, "a", "")}
    here, there = (column_concentrations(each, columns) for each in (space, space.to("cuda")))
    assert {name: each.means for name, each in here.items()} == {name: each.means for name, each in there.items()}


def test_missing_numbers_are_unknown_and_ones_and_zeros_are_yes_and_no():
    space = Space.of(torch.arange(6.0)[:, None], torch.zeros(6, dtype=torch.long))
    missing = {"size": np.array([1.5, np.nan, np.nan, 2.5, 1.5, 2.5])}
    words = {"size": np.array(["1.5", "", "", "2.5", "1.5", "2.5"])}
    assert column_concentrations(space, missing)["size"].means == column_concentrations(space, words)["size"].means
    floats, booleans = ({"has": np.array([1, 0, 1, 0, 0, 1]).astype(kind)} for kind in (float, bool))
    assert column_concentrations(space, floats)["has"].means == column_concentrations(space, booleans)["has"].means
