import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import attributes as reference

from nearkin.clustering import distances
from nearkin.errors import UserError
from nearkin.evaluation.attributes import attribute_concentration
from nearkin.space import Space


def a_space(x, is_query=None, is_gallery=None):
    return Space(x, torch.zeros(len(x), dtype=torch.long), torch.arange(len(x)), is_query, is_gallery)


def random(items=50, attributes=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(items, 3, generator=generator)
    return x, torch.rand(items, attributes, generator=generator) < torch.tensor([0.1, 0.3, 0.5, 0.9])[:attributes]


def expected(space, table, size):
    x = space.embeddings.double().numpy()
    found = reference.concentration(x, table.numpy(), size, space.queries.tolist(), space.gallery.tolist())
    return (np.array(column) for column in zip(*found, strict=True))


def assert_as_in_the_loops(found, space, table):
    for place, size in enumerate(found.sizes):
        items, shares, chances = expected(space, table, size)
        np.testing.assert_array_equal(found.items, items)
        np.testing.assert_allclose(found.shares[:, place], shares)
        np.testing.assert_allclose(found.chances, chances)
        assert found.means[size] == pytest.approx(np.nansum(items * shares) / items.sum())
        assert found.chance == pytest.approx(np.nansum(items * chances) / items.sum())


@pytest.mark.parametrize("block_bytes", [400, distances.BLOCK_BYTES])
def test_shares_and_chances_equal_the_definition(block_bytes, monkeypatch):
    monkeypatch.setattr(distances.row_blocks, "__defaults__", (block_bytes,))
    x, table = random()
    space = a_space(x)
    found = attribute_concentration(space, table, sizes=[20, 1, 3, 49, 3])
    assert found.sizes == (1, 3, 20, 49)
    assert_as_in_the_loops(found, space, table)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_ties_and_splits_into_queries_and_gallery_equal_the_loops(data):
    n = data.draw(st.integers(3, 15))
    x = torch.tensor(data.draw(st.lists(st.integers(-2, 2), min_size=2 * n, max_size=2 * n))).float().reshape(n, 2)
    booleans = st.lists(st.booleans(), min_size=n, max_size=n).map(torch.tensor)
    table = torch.stack([data.draw(booleans), data.draw(booleans)], 1)
    space = a_space(x, data.draw(st.none() | booleans), data.draw(st.none() | booleans))
    sizes = [1, 2]
    try:
        found = attribute_concentration(space, table, sizes)
    except UserError:
        queries, gallery = set(space.queries.tolist()), set(space.gallery.tolist())
        assert len(gallery) - bool(queries & gallery) < 2 or not table[space.queries].any()
    else:
        assert_as_in_the_loops(found, space, table)


@pytest.mark.parametrize("words", [False, True])
def test_every_value_of_a_label_is_an_attribute(words):
    x, _ = random()
    labels = torch.randint(0, 5, (50,), generator=torch.Generator().manual_seed(1)) * 3 - 6
    one_hot = labels[:, None] == labels.unique()
    table = attribute_concentration(a_space(x), one_hot, [1, 5])
    found = attribute_concentration(a_space(x), np.array([chr(100 + n) for n in labels]) if words else labels, [1, 5])
    assert torch.equal(found.items, table.items)
    assert torch.equal(found.shares, table.shares)
    assert torch.equal(found.chances, table.chances)


def test_one_boolean_column_is_one_attribute_that_items_have_or_lack():
    x, table = random()
    found = attribute_concentration(a_space(x), table[:, 1].numpy(), [2])
    torch.testing.assert_close(found.shares, attribute_concentration(a_space(x), table, [2]).shares[1:2])


def test_all_neighbours_are_as_good_as_chance_and_separate_groups_are_perfect():
    x = torch.tensor([[0.0], [0.1], [0.2], [9.0], [9.1], [9.2]])
    found = attribute_concentration(a_space(x), ["red"] * 3 + ["blue"] * 3, [2, 5])
    assert found.means == pytest.approx({2: 1.0, 5: found.chance})
    assert found.chance == pytest.approx(2 / 5)


def test_an_attribute_that_no_query_has_counts_for_nothing():
    x, table = random(attributes=2)
    with_empty = torch.cat([table, torch.zeros(50, 1, dtype=torch.bool)], 1)
    found = attribute_concentration(a_space(x), with_empty, [4])
    assert found.items[2] == 0 and found.shares[2].isnan().all() and found.chances[2].isnan()
    assert found.means == attribute_concentration(a_space(x), table, [4]).means


def test_wrong_attributes_and_sizes_are_clear_errors():
    x, table = random(items=5)
    with pytest.raises(UserError, match=r"booleans of shape \(5, attributes\) .*, got int64 of shape \(4,\)"):
        attribute_concentration(a_space(x), torch.arange(4), [1])
    with pytest.raises(UserError, match="labels of shape"):
        attribute_concentration(a_space(x), table.long(), [1])
    for sizes in ([], [0, 1], [5]):
        with pytest.raises(UserError, match="sizes must be integers from 1 to 4"):
            attribute_concentration(a_space(x), table, sizes)
    with pytest.raises(UserError, match="no query has any of the attributes"):
        attribute_concentration(a_space(x), torch.zeros(5, 2, dtype=torch.bool), [1])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_cuda_the_shares_are_the_same():
    x, table = random(items=500)
    here, there = attribute_concentration(a_space(x), table), attribute_concentration(a_space(x).to("cuda"), table)
    for ours, theirs in ((here.shares, there.shares), (here.chances, there.chances)):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)  # sums of another order; one neighbour weighs 1e-5
