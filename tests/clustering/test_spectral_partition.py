import numpy as np
import pytest
import torch
from reference.spectral_partition import spectral_embedding as reference

from nearkin.clustering import kmeans, spectral_embedding, spectral_partition
from nearkin.errors import UserError


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def products(embedding):
    """Inner products of the rows, which do not depend on signs and rotations of the columns."""
    embedding = embedding.double()
    return embedding @ embedding.T


@pytest.mark.parametrize("shape", [(200, 8), (50, 50), (20, 30), (2, 5), (7, 1)])
def test_agrees_with_numpy(shape):
    x = random(*shape)
    rank = min(shape[0] - 1, shape[1])
    found = spectral_embedding(x)
    assert found.shape == (shape[0], rank)
    expected = reference(x.numpy(), rank)
    np.testing.assert_allclose(products(found), expected @ expected.T, atol=1e-9)


def test_invertible_linear_maps_and_shifts_only_rotate_the_embedding():
    x = random(100, 6)
    expected = products(spectral_embedding(x))
    linear = random(6, 6, seed=1) @ torch.diag(torch.tensor([1e-4, 1e-2, 1, 1, 10, 1e3], dtype=torch.float64))
    for mapped in (x @ linear, x * 1e-100, x * 1e100, x + 1e6, x @ linear - 5):
        torch.testing.assert_close(products(spectral_embedding(mapped)), expected, rtol=0, atol=1e-6)


def test_in_float32_the_embedding_is_that_of_float64_also_where_columns_differ_much_in_scale():
    x = random(300, 5, dtype=torch.float32) * torch.tensor([1e-4, 1.0, 1.0, 10.0, 100.0])
    found = spectral_embedding(x)
    assert found.dtype == torch.float32
    torch.testing.assert_close(products(found), products(spectral_embedding(x.double())), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dependent_and_constant_columns_do_not_count(dtype):
    x = random(500, 4, dtype=dtype)
    more = torch.cat([x, x[:, :1] / 3 + x[:, 1:2] / 7, torch.full((500, 1), 0.1, dtype=dtype)], 1)
    found = spectral_embedding(more)
    assert found.shape == (500, 4)
    torch.testing.assert_close(products(found), products(spectral_embedding(x)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_points_on_a_line_have_rank_one(dtype):
    for seed in range(10):
        x = random(2000, 1, seed=seed, dtype=dtype) @ random(1, 50, seed=seed + 100, dtype=dtype)
        assert spectral_embedding(x).shape == (2000, 1)


@pytest.mark.parametrize("n", [1, 3, 1000])
def test_equal_points_stay_at_the_origin(n):
    for dtype in (torch.float32, torch.float64):
        found = spectral_embedding(torch.full((n, 4), 0.1, dtype=dtype))
        assert found.shape == (n, 1)
        assert not found.any()
    assert spectral_partition(torch.full((n, 4), 0.1), 1).inertia == 0


def test_a_point_in_the_centre_stays_at_the_origin_and_all_others_have_length_one():
    x = random(30, 3)
    lengths = spectral_embedding(torch.cat([x, -x, torch.zeros(1, 3)]) + 0.3).norm(dim=1)
    torch.testing.assert_close(lengths[:-1], torch.ones(60, dtype=torch.float64))
    assert lengths[-1] == 0


def test_partition_is_k_means_of_the_embedding():
    x = random(80, 5)
    found, expected = spectral_partition(x, 4, seed=2, iterations=3), kmeans(spectral_embedding(x), 4, 2, 3)
    assert torch.equal(found.assignment, expected.assignment)
    assert found.inertia == expected.inertia


def test_classes_are_found_that_differ_only_in_a_column_of_small_scale():
    labels = torch.arange(200) % 2
    x = torch.stack([1000 * random(200), 0.01 * labels + 1e-4 * random(200, seed=1)], 1)
    agreement = (spectral_partition(x, 2).assignment == labels).double().mean().item()
    plain = (kmeans(x, 2).assignment == labels).double().mean().item()
    assert abs(agreement - 0.5) > abs(plain - 0.5) + 0.2


def test_wrong_input_is_a_clear_error():
    with pytest.raises(UserError, match=r"got \(0, 3\)"):
        spectral_embedding(torch.zeros(0, 3))
    with pytest.raises(UserError, match="NaN"):
        spectral_embedding(torch.full((2, 2), torch.nan))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_cuda_the_embedding_is_the_same():
    x = random(500, 16, dtype=torch.float32)
    found = spectral_embedding(x.cuda())
    assert found.is_cuda
    torch.testing.assert_close(products(found).cpu(), products(spectral_embedding(x)), rtol=0, atol=1e-5)
