import pytest
import torch

from nearkin.clustering.distances import SquaredDistances, near_origin, row_blocks
from nearkin.errors import UserError


def exact(queries, gallery):
    return (queries.double()[:, None] - gallery.double()).square().sum(2)


def through_near_origin(queries, gallery):
    near_queries, near_gallery, scale = near_origin(queries, gallery)
    return SquaredDistances(near_gallery)(near_queries).double() * scale**2


def test_distances_are_those_of_subtraction():
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(through_near_origin(x[:7], x), exact(x[:7], x), rtol=1e-5, atol=1e-5)


def test_points_far_from_the_origin_keep_their_distances():
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)) + 1000
    torch.testing.assert_close(through_near_origin(x, x), exact(x, x), rtol=1e-5, atol=1e-5)
    uncentred = SquaredDistances(x)(x).double()
    assert (uncentred - exact(x, x)).abs().max() > 0.1, "the remedy would not be needed"


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_very_small_and_very_large_coordinates_stay_within_float32(size):
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(through_near_origin(x * size, x * size) / size**2, exact(x, x), rtol=1e-4, atol=1e-5)


def test_whole_numbers_stay_exact_so_that_ties_stay_ties():
    x = torch.randint(-9, 10, (50, 4), generator=torch.Generator().manual_seed(0)).float() + 4321
    assert torch.equal(through_near_origin(x, x), exact(x, x))


def test_coincident_points_all_at_once():
    x = torch.full((5, 3), 7.25)
    assert torch.equal(through_near_origin(x, x), torch.zeros(5, 5, dtype=torch.float64))


def test_rounding_makes_no_distance_negative():
    x = torch.randn(200, 16, generator=torch.Generator().manual_seed(0))
    assert SquaredDistances(x)(x).min() >= 0


def test_precision_chosen_for_training_does_not_reach_the_distances():
    x = torch.randn(30, 8, generator=torch.Generator().manual_seed(0))
    expected = SquaredDistances(x)(x)
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(SquaredDistances(x)(x), expected)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_precision_chosen_through_torch_backends_does_not_reach_the_distances_either():
    matmul = torch.backends.mkldnn.matmul
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("this torch knows one way only")
    seen = []

    class Watched(SquaredDistances):
        def __init__(self, gallery):
            super().__init__(gallery)
            self._gallery = self._gallery.as_subclass(Recorder)

    class Recorder(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            if function is torch.mm:
                seen.append((torch.backends.cuda.matmul.fp32_precision, matmul.fp32_precision))
            return super().__torch_function__(function, types, args, kwargs)

    matmul.fp32_precision = "bf16"
    try:
        Watched(torch.eye(3))(torch.eye(3))
        assert matmul.fp32_precision == "bf16"
    finally:
        matmul.fp32_precision = "ieee"
    assert seen == [("ieee", "ieee")]


def test_half_precision_embeddings_are_taken():
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)).half()
    torch.testing.assert_close(through_near_origin(x, x), exact(x, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_vectors_that_are_not_finite_are_refused(bad):
    x = torch.zeros(4, 2)
    x[2, 1] = bad
    with pytest.raises(UserError, match="NaN or infinite"):
        near_origin(x[:1], x)


@pytest.mark.parametrize(("rows", "columns", "block_bytes"), [(10, 3, 36), (7, 100, 4), (5, 5, 10**9), (0, 3, 12)])
def test_blocks_cover_all_rows_in_order_within_their_budget(rows, columns, block_bytes):
    blocks = row_blocks(rows, columns, block_bytes)
    assert [i for block in blocks for i in range(block.start, block.stop)] == list(range(rows))
    assert all((b.stop - b.start) * columns * 4 <= block_bytes or b.stop - b.start == 1 for b in blocks)
