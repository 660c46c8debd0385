import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.retrieval import nearest
from reference.spaces import DEVICES, difficult_points, three_tight_groups
from sklearn.neighbors import NearestNeighbors

from nearkin.clustering import distances, nearest_in_other_groups, nearest_neighbours, neighbours
from nearkin.clustering.neighbours import lowest_columns
from nearkin.errors import UserError


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_agrees_with_scikit_learn():
    gallery, queries = random(300, 16), random(50, 16, seed=1)
    found, rows = nearest_neighbours(queries, gallery, 7)
    expected, expected_rows = NearestNeighbors(n_neighbors=7).fit(gallery.numpy()).kneighbors(queries.numpy())
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_array_equal(rows, expected_rows)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_ties_go_to_the_lowest_row_even_at_the_kth_place(data):
    n, dim = data.draw(st.integers(2, 30)), data.draw(st.integers(1, 3))
    numbers = st.lists(st.integers(-2, 2), min_size=n * dim, max_size=n * dim)
    x = torch.tensor(data.draw(numbers)).float().reshape(n, dim)
    exclude = torch.tensor(data.draw(st.lists(st.integers(-1, n - 1), min_size=n, max_size=n)))
    k = data.draw(st.integers(1, n - 1))
    found, rows = nearest_neighbours(x, x, k, exclude)
    expected, expected_rows = nearest(x.double().numpy(), x.double().numpy(), k, exclude.tolist())
    np.testing.assert_array_equal(rows, expected_rows)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("many", [neighbours.MANY, 0])
@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_neighbours_in_difficult_spaces_equal_float64(device, many, data):
    x = data.draw(difficult_points())
    n = len(x)
    exclude = torch.tensor(data.draw(st.lists(st.integers(-1, n - 1), min_size=n, max_size=n)))
    k = data.draw(st.integers(1, n - 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours, "MANY", many)
        found, rows = nearest_neighbours(x.to(device), x.to(device), k, exclude)
    expected, expected_rows = nearest(x.double().numpy(), x.double().numpy(), k, exclude.tolist())
    np.testing.assert_array_equal(rows.cpu(), expected_rows)
    np.testing.assert_allclose(found.cpu(), expected, rtol=1e-6 if x.dtype == torch.float32 else 1e-15)


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_neighbours_in_other_groups_are_those_that_remain_without_the_own(device, data):
    x = data.draw(difficult_points())
    n = len(x)
    groups = torch.tensor(data.draw(st.lists(st.integers(-2, 2), min_size=n, max_size=n)))
    k = data.draw(st.integers(1, n + 2))
    found = nearest_in_other_groups(x.to(device), groups.to(device), k).cpu()
    for row in range(n):
        others = (groups != groups[row]).nonzero().squeeze(1)
        m = min(k, len(others))
        expected = torch.full((k,), -1)
        if m:
            nearby = nearest(x[row : row + 1].double().numpy(), x[others].double().numpy(), m, [-1])[1][0]
            expected[:m] = others[torch.as_tensor(np.array(nearby))]
        assert torch.equal(found[row], expected)


@pytest.mark.parametrize("device", DEVICES)
def test_neighbours_within_tight_groups_are_ordered(device):
    x = three_tight_groups()[0]
    rows = nearest_neighbours(x.to(device), x.to(device), 3, torch.arange(len(x)))[1]
    squares = (x.double()[:, None] - x.double()).square().sum(2).fill_diagonal_(torch.inf)
    assert torch.equal(rows.cpu(), squares.argsort(1)[:, :3])


def test_float64_points_that_coincide_in_float32_are_told_apart():
    x = 1 + torch.tensor([[0.0], [3e-12], [4e-12], [9e-12]], dtype=torch.float64)
    assert len(x.float().unique()) == 1
    found, rows = nearest_neighbours(x, x, 1, torch.arange(4))
    assert rows.flatten().tolist() == [1, 2, 1, 2]
    assert found.dtype == torch.float64
    torch.testing.assert_close(found.flatten(), torch.tensor([3e-12, 1e-12, 1e-12, 5e-12]).double(), rtol=1e-3, atol=0)


def test_an_extremely_far_query_finds_its_neighbours():
    gallery = torch.tensor([[1e-20], [0.0], [-1e-20]])
    found, rows = nearest_neighbours(torch.tensor([[-1e-19], [1e30]]), gallery, 1)
    assert rows.flatten().tolist() == [2, 0]
    assert found[1].item() == pytest.approx(1e30)


def test_well_separated_neighbours_need_few_exact_distances(monkeypatch):
    x = torch.nn.functional.normalize(random(3000, 64))
    pairs = []
    exact = distances.DistanceBlock.exact
    monkeypatch.setattr(distances.DistanceBlock, "exact", lambda b, r, c: pairs.append(c.numel()) or exact(b, r, c))
    monkeypatch.setattr(distances.DistanceBlock, "exact_rows", None)
    nearest_neighbours(x, x, 5, torch.arange(3000))
    assert sum(pairs) < 3000 * 8


def test_collapsed_space_gives_the_lowest_rows_at_distance_zero():
    x = torch.full((40, 5), 0.3)
    found, rows = nearest_neighbours(x, x, 3, exclude=torch.arange(40))
    assert not found.any()
    assert rows[0].tolist() == [1, 2, 3]
    assert rows[2].tolist() == [0, 1, 3]
    assert (rows[3:] == torch.arange(3)).all()


def test_duplicates_are_at_distance_zero_far_from_the_origin():
    x = random(50, 8).repeat(2, 1) * 0.01 + 100
    found, rows = nearest_neighbours(x, x, 1, exclude=torch.arange(100))
    assert not found.any()
    assert torch.equal(rows[:, 0], (torch.arange(100) + 50) % 100)


def test_blocks_change_nothing_and_stay_within_their_budget(monkeypatch):
    gallery, queries = random(200, 8), random(90, 8, seed=1)
    gallery[100:110] = gallery[:10]
    expected = nearest_neighbours(queries, gallery, 5)
    largest, row_blocks = [], distances.row_blocks

    def tiny_blocks(rows, columns, _):
        blocks = row_blocks(rows, columns, block_bytes=3000)
        largest.append(max((4 * columns * (b.stop - b.start) for b in blocks), default=0))
        return blocks

    monkeypatch.setattr(neighbours, "row_blocks", tiny_blocks)
    monkeypatch.setattr(distances, "row_blocks", tiny_blocks)
    found = nearest_neighbours(queries, gallery, 5)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    assert max(largest) <= 3000


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_lowest_columns_are_those_of_a_stable_sort(data):
    rows, n = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 60))
    values = st.sampled_from([-0.5, 0.0, 0.25, 1.0, float("inf")])
    block = torch.tensor(data.draw(st.lists(values, min_size=rows * n, max_size=rows * n))).reshape(rows, n)
    m = data.draw(st.integers(0, n))
    assert torch.equal(lowest_columns(block, m), block.sort(dim=1, stable=True).indices[:, :m])


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_the_lowest_values_are_those_of_a_sort(data):
    rows, n = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 60))
    values = st.sampled_from([-0.5, 0.0, 0.25, 1.0, float("inf")])
    block = torch.tensor(data.draw(st.lists(values, min_size=rows * n, max_size=rows * n))).reshape(rows, n)
    m = data.draw(st.integers(0, n))
    lowest, columns = neighbours._lowest(block, m)
    assert torch.equal(lowest.sort(dim=1).values, block.sort(dim=1).values[:, :m])
    assert torch.equal(block.gather(1, columns), lowest)
    assert all(len(set(row)) == m for row in columns.tolist())


@pytest.mark.parametrize("many", [neighbours.MANY, 0])
def test_equal_distances_among_many_neighbours_are_in_the_order_of_their_rows(monkeypatch, many):
    monkeypatch.setattr(neighbours, "MANY", many)
    gallery = random(1500, 4)
    gallery[700:1000] = gallery[:300]
    rows = nearest_neighbours(gallery[:20], gallery, 300)[1]
    distances = (gallery[:20, None].double() - gallery.double()).square().sum(2)
    assert torch.equal(rows, distances.sort(dim=1, stable=True).indices[:, :300])


def test_the_whole_gallery_can_be_requested():
    x = random(6, 2)
    assert nearest_neighbours(x, x, 6)[1].sort().values.tolist() == [list(range(6))] * 6
    assert nearest_neighbours(x, x, 5, torch.arange(6))[1].shape == (6, 5)
    assert nearest_neighbours(x[:0], x, 2)[1].shape == (0, 2)


@pytest.mark.parametrize(("k", "exclude"), [(0, None), (5, None), (4, torch.arange(4))])
def test_more_neighbours_than_there_are_is_a_clear_error(k, exclude):
    x = random(4, 2)
    with pytest.raises(UserError, match=f"because the gallery has 4 rows.*, got {k}"):
        nearest_neighbours(x, x, k, exclude)


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(UserError, match=r"\(3, 2\) and \(3, 4\)"):
        nearest_neighbours(random(3, 2), random(3, 4), 1)
    with pytest.raises(UserError, match=r"exclude must have shape \(3,\), one row per query, got \(2,\)"):
        nearest_neighbours(random(3, 2), random(3, 2), 1, torch.arange(2))


def test_gradients_are_not_computed():
    x = random(5, 2).requires_grad_()
    assert not nearest_neighbours(x, x, 1)[0].requires_grad


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_cuda_the_neighbours_are_the_same_also_where_training_allows_tf32():
    x = random(500, 32)
    x[250:300] = x[:50]
    expected = nearest_neighbours(x, x, 7, torch.arange(500))
    torch.set_float32_matmul_precision("high")
    try:
        found, rows = nearest_neighbours(x.cuda(), x.cuda(), 7, torch.arange(500))
    finally:
        torch.set_float32_matmul_precision("highest")
    assert rows.is_cuda
    assert torch.equal(rows.cpu(), expected[1])
    torch.testing.assert_close(found.cpu(), expected[0])
