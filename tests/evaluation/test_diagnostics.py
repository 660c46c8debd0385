import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import diagnostics as reference

from nearkin.clustering import distances
from nearkin.errors import UserError
from nearkin.evaluation.diagnostics import COLLAPSED, RESOLUTION, diagnostics
from nearkin.space import Space

KINDS = ("positives", "negatives", "negatives_within_clusters", "negatives_across_clusters")


def random_space(items=60, classes=5, dim=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (items,), generator=generator)
    centres = torch.randn(classes, dim, generator=generator)
    return Space.of(centres[labels] + torch.randn(items, dim, generator=generator), labels * 4 - 7)


def random_clusters(items, clusters, seed=1):
    return torch.randint(0, clusters, (items,), generator=torch.Generator().manual_seed(seed)) * 3 - 5


def assert_as_in_the_loops(found, space, clusters):
    x = space.embeddings.double().numpy()
    expected = reference.distances_by_kind(x, space.labels.tolist(), clusters.tolist())
    for kind in KINDS:
        pairs = getattr(found, kind)
        assert pairs.exact
        np.testing.assert_allclose(pairs.mean, np.mean(expected[kind]) if expected[kind] else math.nan)
        np.testing.assert_array_equal(pairs.counts, np.histogram(expected[kind], found.edges)[0])
    assert found.edges[-1] == pytest.approx(max(map(max, filter(None, expected.values())), default=0) or 1)


@pytest.mark.parametrize("block_bytes", [400, distances.BLOCK_BYTES])
def test_few_pairs_are_all_measured(block_bytes, monkeypatch):
    monkeypatch.setattr(distances.row_blocks, "__defaults__", (block_bytes,))
    space, clusters = random_space(), random_clusters(60, 3)
    found = diagnostics(space, pairs=60 * 59 // 2, clusters=clusters)
    assert_as_in_the_loops(found, space, clusters)
    assert found.distance_ratio == pytest.approx(found.positives.mean / found.negatives.mean)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_singletons_single_classes_and_coincident_items_equal_the_loops(data):
    n = data.draw(st.integers(1, 12))
    column = st.lists(st.integers(0, 3), min_size=n, max_size=n)
    space = Space.of(torch.tensor(data.draw(column)).float()[:, None] ** 2, torch.tensor(data.draw(column)))
    clusters = torch.tensor(data.draw(column))
    found = diagnostics(space, clusters=clusters)
    assert_as_in_the_loops(found, space, clusters)
    assert math.isnan(found.distance_ratio) == math.isnan(found.positives.mean + found.negatives.mean)


def test_a_sample_of_many_pairs_draws_each_kind_evenly():
    space, clusters = random_space(items=80, classes=4), random_clusters(80, 3)
    expected = reference.distances_by_kind(space.embeddings.double().numpy(), space.labels.tolist(), clusters.tolist())
    rounds = [diagnostics(space, pairs=300, seed=seed, clusters=clusters) for seed in range(40)]
    for kind in KINDS:
        drawn = [getattr(found, kind) for found in rounds]
        assert not any(pairs.exact for pairs in drawn)
        if kind != "negatives_across_clusters":  # there pairs of one class are drawn too, and left out
            assert all(pairs.counts.sum() == 300 for pairs in drawn)
        means, truth = [pairs.mean for pairs in drawn], expected[kind]
        assert np.mean(means) == pytest.approx(np.mean(truth), abs=4 * np.std(truth) / math.sqrt(200 * len(rounds)))


def test_a_sample_draws_every_pair_and_no_other():
    line = torch.tensor([0.0, 1.0, 3.0, 7.0, 15.0, 31.0])[:, None]  # every pair has its own distance
    labels, clusters = torch.tensor([0, 0, 1, 1, 1, 2]), torch.tensor([0, 1, 0, 1, 1, 0])
    every = reference.distances_by_kind(line.numpy(), labels.tolist(), clusters.tolist())
    found = [diagnostics(Space.of(line, labels), pairs=1, seed=seed, clusters=clusters) for seed in range(400)]
    for kind in KINDS:
        drawn = {round(getattr(one, kind).mean) for one in found if getattr(one, kind).counts.sum()}
        assert drawn == {round(distance) for distance in every[kind]}


def test_the_seed_decides_the_sample():
    space = random_space(items=100)
    first, again, other = (diagnostics(space, pairs=50, seed=seed) for seed in (0, 0, 1))
    assert first.scores == again.scores and torch.equal(first.negatives.counts, again.negatives.counts)
    assert first.negatives.mean != other.negatives.mean


@pytest.mark.parametrize("items, dim", [(60, 6), (5, 8), (7, 7), (9, 1)])
def test_spectral_decay_equals_the_paper(items, dim):
    space = random_space(items=items, dim=dim)
    x = space.embeddings.double().numpy()
    found = diagnostics(space)
    values = np.linalg.svd(x, compute_uv=False)
    np.testing.assert_allclose(found.spectrum, values / values.sum(), rtol=1e-6)
    assert found.spectral_decay == pytest.approx(reference.spectral_decay(x), abs=1e-6)


def test_an_even_spectrum_does_not_decay():
    found = diagnostics(Space.of(torch.cat([torch.eye(4), -torch.eye(4)]), torch.arange(8)))
    assert found.spectral_decay == pytest.approx(0, abs=1e-12)
    assert found.collapsed_dimensions == 0


def test_dimensions_without_variance_count_as_collapsed_and_leave_the_decay_finite():
    x = random_space(items=200, dim=8).embeddings
    x[:, 5:7] = x[:, :2]  # two fewer directions
    x[:, 7] *= COLLAPSED / 100
    found = diagnostics(Space.of(x, torch.arange(200)))
    assert found.collapsed_dimensions == 3 / 8
    assert (found.spectrum[6:] == 0).all()
    floored = found.spectrum.clamp(min=RESOLUTION * found.spectrum[0].item())
    assert found.spectral_decay == pytest.approx(np.mean(np.log(1 / 8 / floored.numpy())))


def test_a_common_offset_does_not_hide_the_spread():
    x = random_space(items=200, dim=8).embeddings
    shifted = diagnostics(Space.of(x + 1e4, torch.arange(200)))
    assert shifted.collapsed_dimensions == diagnostics(Space.of(x, torch.arange(200))).collapsed_dimensions == 0


@pytest.mark.parametrize(("items", "dim"), [(5, 16), (48, 128), (60, 16), (2, 3)])
def test_directions_that_few_items_cannot_span_do_not_count_as_collapsed(items, dim):
    x = torch.randn(items, dim, generator=torch.Generator().manual_seed(0)) + 3
    assert diagnostics(Space.of(x, torch.arange(items))).collapsed_dimensions == 0
    x[:, 1:] = 0
    reach = min(items - 1, dim)
    assert diagnostics(Space.of(x, torch.arange(items))).collapsed_dimensions == (reach - 1) / reach


def test_sampled_scores_are_named():
    space = random_space(items=100)
    positives = sum(n * (n - 1) // 2 for n in space.labels.unique(return_counts=True)[1].tolist())
    assert diagnostics(space).sampled == ()
    assert diagnostics(space, pairs=positives).sampled == ("inter_class_distance", "distance_ratio")
    both = diagnostics(space, pairs=positives - 1).sampled
    assert both == ("intra_class_distance", "inter_class_distance", "distance_ratio")


def test_equal_items_have_no_spread():
    found = diagnostics(Space.of(torch.full((6, 3), 0.7), [0, 0, 0, 1, 1, 2]))
    assert found.positives.mean == found.negatives.mean == 0 and found.distance_ratio == 1
    assert found.positives.counts.sum() == 4 and found.negatives.counts[0] == 11
    assert found.collapsed_dimensions == 1
    nothing = diagnostics(Space.of(torch.zeros(6, 3), [0, 0, 0, 1, 1, 2]))
    assert math.isnan(nothing.spectral_decay) and nothing.collapsed_dimensions == 1
    assert diagnostics(Space.of(torch.ones(1, 3), [0])).collapsed_dimensions == 1


def test_far_from_the_origin_distances_stay_exact():
    found = diagnostics(Space.of(torch.tensor([[1e6], [1e6 + 0.5], [1e6 + 2]]), [0, 0, 1]))
    assert (found.positives.mean, found.negatives.mean) == (0.5, 1.75)


def test_without_clusters_there_are_no_cluster_distances():
    found = diagnostics(random_space())
    assert found.negatives_within_clusters is None and found.negatives_across_clusters is None


def test_wrong_input_is_a_clear_error():
    space = random_space()
    with pytest.raises(UserError, match="pairs must be an integer >= 1, got 0"):
        diagnostics(space, pairs=0)
    with pytest.raises(UserError, match=r"clusters must have shape \(60,\), one per item, got \(3,\)"):
        diagnostics(space, clusters=torch.arange(3))
    with pytest.raises(UserError, match="the space is empty"):
        diagnostics(Space.of(torch.empty(0, 3), torch.empty(0, dtype=torch.long)))
    with pytest.raises(UserError, match="NaN or infinite"):
        diagnostics(Space.of(torch.tensor([[math.nan], [1.0]]), [0, 1]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_cuda_the_diagnostics_are_the_same():
    space, clusters = random_space(items=500), random_clusters(500, 3)
    here = diagnostics(space, pairs=2000, clusters=clusters)
    there = diagnostics(space.to("cuda"), pairs=2000, clusters=clusters.cuda())
    assert there.scores == pytest.approx(here.scores)
    for kind in KINDS:
        assert torch.equal(getattr(there, kind).counts, getattr(here, kind).counts)
