import pytest
import torch
from hypothesis import given, settings
from reference.spaces import DEVICES, difficult_points

from nearkin.clustering import distances
from nearkin.clustering.distances import Distances, row_blocks
from nearkin.errors import UserError


def by_subtraction(queries, gallery):
    return (queries.double()[:, None] - gallery.double()).square().sum(2)


def squares(queries, gallery):
    block = Distances(gallery).block(queries)
    return block.squares.double() * block.scale**2


def check_bound(queries, gallery):
    block = Distances(gallery).block(queries)
    true = by_subtraction(queries.double() / block.scale, gallery.double() / block.scale)
    assert ((block.squares.double() - true).abs() <= block.slack.double() / 2).all()


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=100, deadline=None)
@given(x=difficult_points())
def test_rounding_stays_within_its_bound(device, x):
    x = x.to(device)
    check_bound(x, x)
    half = x[: (len(x) + 1) // 2]
    if (half != half[0]).any():  # otherwise there is only one class
        check_bound(x, half)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dim", [1, 64, 2048])
@pytest.mark.parametrize("offset", [0.0, 1.0, 1e4])
def test_rounding_stays_within_its_bound_in_many_dimensions(device, dim, offset):
    x = (torch.rand(300, dim, generator=torch.Generator().manual_seed(0)) + offset).to(device)
    check_bound(x[:20], x)
    check_bound(x[:20] * 5, x)


@pytest.mark.parametrize("device", DEVICES)
def test_a_finer_block_has_a_finer_bound(device, monkeypatch):
    x = (torch.randn(50, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1000).to(device)
    monkeypatch.setattr(distances, "block_bytes_on", lambda _: 1000)  # several parts of the gallery
    block = Distances(x.float()).block(x)
    block.exclude(torch.full((50,), 7, device=device))
    finer = block.finer(torch.arange(20, 30, device=device))
    true = (x[20:30, None] / block.scale).sub(x.float().double() / block.scale).square().sum(2)
    true[:, 7] = torch.inf
    assert finer.slack.max() < 1e-11
    assert ((finer.squares - true).nan_to_num(0).abs() <= finer.slack / 2).all()
    assert finer.finer(torch.arange(10, device=device)) is None


def test_the_bound_tells_the_neighbours_of_well_separated_points_apart():
    x = torch.nn.functional.normalize(torch.randn(2000, 128, generator=torch.Generator().manual_seed(0)))
    block = Distances(x).block(x[:200])
    block.exclude(torch.arange(200))
    gaps = block.squares.sort(1).values[:, :11].diff()
    assert (gaps <= block.slack).double().mean() < 0.02


def test_exact_distances_equal_subtraction_and_rows_respect_exclusion():
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)) + 1000
    block = Distances(x).block(x[:7])
    block.exclude(torch.tensor([3, -1, -1, -1, -1, -1, 5]))
    expected = by_subtraction(x[:7], x).sqrt()
    expected[0, 3] = expected[6, 5] = torch.inf
    rows, columns = torch.tensor([0, 6, 2]), torch.tensor([[2, 4], [3, 3], [0, 39]])
    torch.testing.assert_close(block.exact_rows(rows) * block.scale, expected[rows], rtol=1e-14, atol=0)
    assert torch.equal(block.exact(rows, columns), block.exact_rows(rows).gather(1, columns))


def test_exact_distances_are_computed_in_blocks_within_their_budget(monkeypatch):
    x = torch.randn(90, 8, generator=torch.Generator().manual_seed(0))
    block, rows, columns = Distances(x).block(x), torch.arange(90), torch.arange(90).expand(90, 90)
    expected = block.exact_rows(rows)
    sizes = []
    subtracted = distances._subtracted
    monkeypatch.setattr(distances, "CACHED_BYTES", 8 * 8 * 60)
    monkeypatch.setattr(distances, "_subtracted", lambda x, y, s: sizes.append(y.numel() * 8) or subtracted(x, y, s))
    assert torch.equal(block.exact_rows(rows), expected)
    assert torch.equal(block.exact(rows[:5], columns[:5, :60]), expected[:5, :60])
    assert max(sizes) <= 8 * 8 * 60


def test_points_far_from_the_origin_keep_their_distances():
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)) + 1000
    torch.testing.assert_close(squares(x, x), by_subtraction(x, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [1e-30, 1e30, 3e37])
def test_very_small_and_very_large_coordinates_stay_within_float32(size):
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(squares(x * size, x * size) / size**2, by_subtraction(x, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_query_far_beyond_the_gallery_is_left_to_exact_distances(dtype):
    gallery = torch.tensor([[0.0], [1e-20]], dtype=dtype)
    block = Distances(gallery).block(torch.tensor([[1e20], [1e-20]], dtype=dtype))
    assert block.slack.isinf().flatten().tolist() == [True, False]
    assert block.squares.isfinite().all()


def test_all_points_can_coincide():
    x = torch.full((5, 3), 7.3)
    block = Distances(x).block(x)
    assert not block.squares.any() and not block.slack.any()
    assert not block.exact_rows(torch.arange(5)).any()


def test_precision_chosen_for_training_does_not_reach_the_distances():
    x = torch.randn(30, 8, generator=torch.Generator().manual_seed(0))
    expected = squares(x, x)
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(squares(x, x), expected)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_precision_chosen_through_torch_backends_does_not_reach_the_distances_either():
    matmul = torch.backends.mkldnn.matmul
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("this torch knows one way only")
    seen = []

    class Watched(Distances):
        def __init__(self, gallery):
            super().__init__(gallery)
            self._ready = self._ready.as_subclass(Recorder)

    class Recorder(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            if function is torch.mm:
                seen.append((torch.backends.cuda.matmul.fp32_precision, matmul.fp32_precision))
            return super().__torch_function__(function, types, args, kwargs)

    matmul.fp32_precision = "bf16"
    try:
        Watched(torch.eye(3)).block(torch.eye(3))
        assert matmul.fp32_precision == "bf16"
    finally:
        matmul.fp32_precision = "ieee"
    assert seen == [("ieee", "ieee")]


def test_half_precision_embeddings_are_accepted():
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)).half()
    torch.testing.assert_close(squares(x, x), by_subtraction(x, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_vectors_that_are_not_finite_are_refused(bad):
    x = torch.zeros(4, 2)
    x[2, 1] = bad
    with pytest.raises(UserError, match="NaN or infinite"):
        Distances(x)
    with pytest.raises(UserError, match="NaN or infinite"):
        Distances(x[:2]).block(x)


@pytest.mark.parametrize(("rows", "columns", "block_bytes"), [(10, 3, 36), (7, 100, 4), (5, 5, 10**9), (0, 3, 12)])
def test_blocks_cover_all_rows_in_order_within_their_budget(rows, columns, block_bytes):
    blocks = row_blocks(rows, columns, block_bytes)
    assert [i for block in blocks for i in range(block.start, block.stop)] == list(range(rows))
    assert all((b.stop - b.start) * columns * 4 <= block_bytes or b.stop - b.start == 1 for b in blocks)
