"""Samplers that change during training: parts of a partition, neighbourhoods of clusters, cached losses."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.samplers import cluster_means, neighbourhood, neighbourhood_batch, seed_probabilities
from scipy.stats import chi2_contingency, chisquare

from nearkin.clustering import nearest_in_other_groups
from nearkin.data.loader import AHEAD
from nearkin.errors import UserError
from nearkin.sampling import ClusterIndex, GroupSampler, NeighbourhoodSampler, PartitionSampler
from nearkin.sampling.base import Members
from nearkin.sampling.cluster_losses import SMOOTHING, ClusterLosses
from nearkin.sampling.losses import LAG, CachedLosses

LABELS = np.repeat(np.arange(12), 8)  # 96 items


def groups_of_two(labels: np.ndarray, batch_size: int, seed: int) -> GroupSampler:
    return GroupSampler(labels, batch_size, 2, seed)


class TestPartition:
    def divided(self) -> PartitionSampler:
        sampler = PartitionSampler(LABELS, 8, groups_of_two, seed=3)
        sampler.divide([np.arange(0, 40), np.arange(40, 96)])
        return sampler

    def test_every_batch_comes_from_the_reported_part(self) -> None:
        sampler = self.divided()
        for step, batch in enumerate([*sampler, *sampler]):
            part = sampler.part_of(step)
            assert set(batch) <= set(sampler.parts[part].tolist())
            assert set(Counter(LABELS[batch]).values()) == {2}  # as the inner sampler promises

    def test_parts_are_drawn_uniformly_at_random_whatever_their_size(self) -> None:
        sampler = PartitionSampler(np.repeat(np.arange(100), 40), 4, groups_of_two)
        sampler.divide([np.arange(0, 400), np.arange(400, 4000)])
        drawn = [sampler.part_of(step) for step in range(1000)]
        assert 430 < sum(drawn) < 570
        assert 430 < sum(a != b for a, b in pairwise(drawn)) < 570

    def test_an_epoch_can_be_continued_anywhere(self) -> None:
        whole = list(self.divided())
        for position in range(len(whole)):
            late = self.divided()
            late.position = position
            assert list(late) == whole[position:]

    def test_it_knows_which_items_can_fill_a_batch(self) -> None:
        sampler = self.divided()
        assert sampler.can_fill_a_batch(np.arange(32))
        assert not sampler.can_fill_a_batch(np.arange(24))  # three classes give six items, not eight
        singles = np.arange(0, 96, 8)  # one item of each class
        assert not sampler.can_fill_a_batch(singles)  # fills a batch, but has no pairs
        assert PartitionSampler(LABELS, 8, groups_of_two, needs_pairs=False).can_fill_a_batch(singles)
        rarely_paired = PartitionSampler(np.r_[np.arange(80), np.repeat(np.arange(80, 88), 2)], 8, groups_of_two)
        assert rarely_paired.can_fill_a_batch(np.r_[np.arange(30), 80, 81])  # as rarely as among all items
        assert not rarely_paired.can_fill_a_batch(np.arange(30))
        one_class = PartitionSampler(LABELS, 4, lambda labels, size, seed: GroupSampler(labels, size, 4, seed))
        assert not one_class.can_fill_a_batch(np.arange(8))  # fills a batch, but has only one class


CLASS_OF = np.repeat(np.arange(12), 2)
CENTROIDS = np.stack([np.arange(12), 100 + np.arange(12)], axis=1).reshape(-1, 1).astype(float)


def clusters_on_a_line() -> ClusterIndex:
    """Two clusters for each class, the first ones at 0, 1, 2, …, the second ones far away at 100, 101, …"""
    halves = (np.arange(len(LABELS)) % 8) // 4
    impostors = nearest_in_other_groups(torch.from_numpy(CENTROIDS), torch.from_numpy(CLASS_OF), 23)
    return ClusterIndex(2 * LABELS + halves, impostors.numpy())


def seeds(losses: ClusterLosses, draws: int = 20_000) -> np.ndarray:
    """(clusters,) how often each is drawn."""
    rng = np.random.default_rng(0)
    return np.bincount([losses.draw(rng) for _ in range(draws)], minlength=len(losses.clusters))


class TestNeighbourhoods:
    def sampler(self, batch_size: int = 12, per_cluster: int = 3) -> NeighbourhoodSampler:
        sampler = NeighbourhoodSampler(LABELS, batch_size, per_cluster, seed=1)
        sampler.refresh(clusters_on_a_line())
        return sampler

    def test_a_batch_is_a_seed_and_its_nearest_clusters_of_other_classes(self) -> None:
        sampler = self.sampler()
        for batch in [*sampler, *sampler]:
            clusters = sampler.index.cluster_of[batch].reshape(4, 3)
            assert (clusters == clusters[:, :1]).all()  # three of each, adjacent
            assert len(set(batch)) == 12
            np.testing.assert_array_equal(clusters[:, 0], neighbourhood(clusters[0, 0], CENTROIDS, CLASS_OF, 4))

    def test_impostors_that_are_missing_are_left_out(self) -> None:
        sampler = NeighbourhoodSampler(np.array([0, 0, 1, 1, 1, 1, 0, 0]), 6, 2)
        sampler.refresh(ClusterIndex(np.arange(8) // 2, np.array([[1, 2, 3], [0, -1, -1], [3, 0, -1], [2, 1, 0]])))
        assert [sampler.neighbourhood(seed).tolist() for seed in range(4)] == [[0, 1, 2], [1, 0], [2, 3, 0], [3, 2, 1]]

    def test_batches_are_distributed_as_those_that_read_everything(self) -> None:
        """Counts of seeds, and of the items at every place of a batch, against the plain definition."""
        sampler = self.sampler(batch_size=8, per_cluster=4)
        losses = np.random.default_rng(2).exponential(size=96) ** 3
        losses[::5] = losses[24:32] = np.nan
        sampler.losses.record(0, np.arange(96), losses)
        sampler.refresh(sampler.index)
        batches = [batch for _ in range(250) for batch in sampler]  # 12 in an epoch
        cluster_of = sampler.index.cluster_of
        counts = np.bincount(cluster_of[[batch[0] for batch in batches]], minlength=24)
        probabilities = seed_probabilities(cluster_of, 24, losses)
        assert chisquare(counts, probabilities * len(batches)).pvalue > 0.001
        rng = np.random.default_rng(3)
        slow = [
            neighbourhood_batch(neighbourhood(seed, CENTROIDS, CLASS_OF, 2), cluster_of, 8, rng)
            for seed in rng.choice(24, len(batches), p=probabilities)
        ]
        for place in range(8):
            both = [np.bincount(np.array(drawn)[:, place], minlength=96) for drawn in (batches, slow)]
            assert chi2_contingency(np.array(both) + 1).pvalue > 0.001

    def test_small_clusters_repeat_items(self) -> None:
        sampler = self.sampler(batch_size=24, per_cluster=6)  # clusters have four items
        for batch in sampler:
            assert len(batch) == 24
            assert set(Counter(batch).values()) <= {1, 2}
            assert len(set(batch)) == 16

    def test_the_items_of_a_cluster_are_drawn_anew_each_time(self) -> None:
        sampler = self.sampler()
        drawn = {item for _ in range(40) for batch in sampler for item in batch}
        assert drawn == set(range(96))  # three of four items a time, and all come up

    def test_a_refresh_draws_by_all_recorded_losses(self) -> None:
        sampler = self.sampler()
        sampler.losses.record(0, np.arange(96), np.where(sampler.index.cluster_of == 7, 3.0, 0.5))
        assert not sampler.losses.known_at(1).is_known.any()
        sampler.refresh(clusters_on_a_line())
        assert sampler.losses.known_at(1).is_known.all()

    def test_with_few_impostors_each_cluster_gives_more_items(self) -> None:
        sampler = NeighbourhoodSampler(np.repeat([0, 1], 20), 16, 2)
        (batch, *_) = sampler
        assert len(set(batch)) == 16
        assert Counter(np.repeat([0, 1], 20)[batch]) == {0: 8, 1: 8}

    def test_a_batch_that_clusters_cannot_fill_is_refused(self) -> None:
        with pytest.raises(UserError, match="multiple of per_cluster=5"):
            NeighbourhoodSampler(LABELS, 12, 5)

    def test_seeds_follow_the_mean_loss_of_their_items(self) -> None:
        sampler = self.sampler()
        losses = np.where(sampler.index.cluster_of == 7, 3.0, 0.5)
        sampler.losses.record(0, np.arange(96), losses)
        average = (3.0 + 23 * 0.5) / 24
        expected = np.where(np.arange(24) == 7, 3.0, 0.5) + SMOOTHING * average
        assert chisquare(seeds(sampler.losses.known_at(LAG)), 20_000 * expected / expected.sum()).pvalue > 0.001

    def test_a_zero_loss_is_known_and_an_unknown_loss_counts_as_average(self) -> None:
        sampler = self.sampler()
        cluster_of = sampler.index.cluster_of
        sampler.losses.record(0, np.flatnonzero(cluster_of == 0), np.zeros(4))
        sampler.losses.record(1, np.flatnonzero(cluster_of == 1), np.full(4, 2.0))
        expected = np.array([0.0, 2.0, *[1.0] * 22]) + SMOOTHING
        counts = seeds(sampler.losses.known_at(2 + LAG))
        assert 0 < counts[0] < 30  # low loss: rarely drawn, but never excluded
        assert chisquare(counts, 20_000 * expected / expected.sum()).pvalue > 0.001

    @pytest.mark.parametrize("loss", [np.nan, 0.0])
    def test_without_losses_all_clusters_are_equally_likely(self, loss: float) -> None:
        sampler = self.sampler()
        sampler.losses.record(0, np.arange(96), np.full(96, loss))
        assert chisquare(seeds(sampler.losses.known_at(LAG))).pvalue > 0.001

    def test_a_saved_sampler_continues_with_the_same_batches(self) -> None:
        def feedback(step: int, batch: list[int], sampler: NeighbourhoodSampler) -> None:
            rng = np.random.default_rng(step)
            sampler.losses.record(step, np.array(batch), rng.exponential(size=len(batch)))

        whole = self.sampler(batch_size=2, per_cluster=1)
        drawn = []
        for step, batch in enumerate(whole):
            drawn.append(batch)
            feedback(step, batch, whole)
        for stop in (10, 40):
            first = self.sampler(batch_size=2, per_cluster=1)
            ahead = iter(first)
            queue = [next(ahead) for _ in range(5)]  # read ahead while training lags behind
            for step in range(stop):
                feedback(step, queue[step], first)
                queue.append(next(ahead))
            first.position = stop
            state = first.state_dict()
            second = NeighbourhoodSampler(LABELS, 2, 1, seed=1)
            second.load_state_dict(state)
            continued = []
            for step, batch in enumerate(second, stop):
                continued.append(batch)
                feedback(step, batch, second)
            assert queue[:stop] + continued == drawn


def test_losses_count_only_after_the_batches_that_are_read_ahead() -> None:
    assert LAG > AHEAD


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 32)), min_size=1, max_size=90))
@settings(max_examples=40, deadline=None)
def test_known_losses_do_not_depend_on_how_far_batches_are_read_ahead(recorded: list[tuple[int, int]]) -> None:
    """Compares with the definition: the latest loss of each item that is at least LAG steps old."""
    cached = CachedLosses(Members(np.array([0, 1, 1, 2])))
    for step, (item, ahead) in enumerate(recorded):
        reading = step + ahead
        expected = np.full(4, np.nan)
        for before in range(min(step, reading - LAG + 1)):
            expected[recorded[before][0]] = before
        assert_known(cached.known_at(reading), expected)
        cached.record(step, np.array([item]), np.array([float(step)]))


def assert_known(found: ClusterLosses, losses: np.ndarray) -> None:
    """The same means as from all losses (items,), and the same numbers, to the last bit, as without a history."""
    means = cluster_means(found.clusters.group_of, len(found.clusters), losses)
    np.testing.assert_array_equal(found.is_known, ~np.isnan(means))
    np.testing.assert_allclose(found.means.levels[0].flat[: len(means)], np.nan_to_num(means), rtol=1e-12)
    fresh = ClusterLosses(found.clusters, losses)
    for ours, theirs in zip(found.means.levels, fresh.means.levels, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@given(st.lists(st.tuples(st.integers(0, 299), st.floats(0, 1e6) | st.just(np.nan) | st.just(np.inf)), max_size=60))
@settings(max_examples=30, deadline=None)
def test_losses_of_clusters_follow_from_the_latest_loss_of_every_item(updates: list[tuple[int, float]]) -> None:
    losses = np.random.default_rng(0).exponential(size=300)
    losses[::3] = np.nan
    known = ClusterLosses(Members(np.random.default_rng(1).integers(0, 70, 300), groups=70), losses.copy())
    for start in range(0, len(updates), 7):
        items, values = (np.array(column) for column in zip(*updates[start : start + 7], strict=True))
        known.update(items, values)
        losses[items] = values  # of an item that comes twice, the last one counts
    assert_known(known, losses)
