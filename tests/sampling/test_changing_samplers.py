"""Samplers that change during training: parts of a partition, neighbourhoods of clusters, cached losses."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.data.loader import AHEAD
from nearkin.errors import UserError
from nearkin.sampling import ClusterIndex, GroupSampler, NeighbourhoodSampler, PartitionSampler
from nearkin.sampling.losses import LAG, CachedLosses
from nearkin.sampling.neighbourhoods import SMOOTHING

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


def clusters_on_a_line() -> ClusterIndex:
    """Two clusters for each class, the first ones at 0, 1, 2, …, the second ones far away at 100, 101, …"""
    halves = (np.arange(len(LABELS)) % 8) // 4
    centroids = np.stack([np.arange(12), 100 + np.arange(12)], axis=1).reshape(-1, 1).astype(float)
    return ClusterIndex(2 * LABELS + halves, centroids, np.repeat(np.arange(12), 2))


class TestNeighbourhoods:
    def sampler(self, batch_size: int = 12, per_cluster: int = 3) -> NeighbourhoodSampler:
        sampler = NeighbourhoodSampler(LABELS, batch_size, per_cluster, seed=1)
        sampler.refresh(clusters_on_a_line())
        return sampler

    def test_a_batch_is_a_seed_and_its_nearest_clusters_of_other_classes(self) -> None:
        sampler = self.sampler()
        index = sampler.index
        for batch in [*sampler, *sampler]:
            clusters = index.cluster_of[batch].reshape(4, 3)
            assert (clusters == clusters[:, :1]).all()  # three of each, adjacent
            assert len(set(batch)) == 12
            seed, *impostors = clusters[:, 0]
            assert index.class_of[seed] not in index.class_of[impostors]
            distance = np.abs(index.centroids[:, 0] - index.centroids[seed, 0])
            others = index.class_of != index.class_of[seed]
            assert sorted(distance[impostors]) == sorted(distance[others])[:3]

    def test_impostors_can_share_a_class_but_never_that_of_the_seed(self) -> None:
        sampler = NeighbourhoodSampler(np.array([0, 0, 1, 1, 1, 1, 0, 0]), 6, 2)
        index = ClusterIndex(
            np.array([0, 0, 1, 1, 2, 2, 3, 3]), np.array([[0.0], [1.0], [2.0], [0.5]]), np.array([0, 1, 1, 0])
        )
        sampler.refresh(index)
        assert sampler.neighbourhood(0).tolist() == [0, 1, 2]

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
        assert sampler.seed_probabilities(1)[7] == pytest.approx(1 / 24)
        sampler.refresh(clusters_on_a_line())
        assert sampler.seed_probabilities(1)[7] > 0.15

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
        members = np.flatnonzero(sampler.index.cluster_of == 7)
        losses = np.where(np.isin(np.arange(96), members), 3.0, 0.5)
        sampler.losses.record(0, np.arange(96), losses)
        probabilities = sampler.seed_probabilities(LAG)
        average = (3.0 + 23 * 0.5) / 24
        assert probabilities.sum() == pytest.approx(1)
        assert probabilities[7] / probabilities[0] == pytest.approx(
            (3.0 + SMOOTHING * average) / (0.5 + SMOOTHING * average)
        )

    def test_a_zero_loss_is_known_and_an_unknown_loss_counts_as_average(self) -> None:
        sampler = self.sampler()
        cluster_of = sampler.index.cluster_of
        sampler.losses.record(0, np.flatnonzero(cluster_of == 0), np.zeros(4))
        sampler.losses.record(1, np.flatnonzero(cluster_of == 1), np.full(4, 2.0))
        probabilities = sampler.seed_probabilities(2 + LAG)
        assert 0 < probabilities[0] < 0.02 * probabilities[1]  # low loss: rarely drawn, but never excluded
        assert probabilities[5] == pytest.approx(probabilities[1] * (1 + SMOOTHING) / (2 + SMOOTHING))

    def test_without_losses_all_clusters_are_equally_likely(self) -> None:
        sampler = self.sampler()
        assert sampler.seed_probabilities(0) == pytest.approx(np.full(24, 1 / 24))
        sampler.losses.record(0, np.arange(96), np.zeros(96))
        assert sampler.seed_probabilities(LAG) == pytest.approx(np.full(24, 1 / 24))

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


@given(recorded=st.lists(st.integers(0, 3), min_size=1, max_size=90), ahead=st.integers(0, 32))
@settings(max_examples=40, deadline=None)
def test_known_losses_do_not_depend_on_how_far_batches_are_read_ahead(recorded: list[int], ahead: int) -> None:
    """Compares with the definition: the latest loss of each item that is at least LAG steps old."""
    cached = CachedLosses(items=4)
    for step, item in enumerate(recorded):
        reading = step + ahead
        expected = np.full(4, np.nan)
        for before in range(min(step, reading - LAG + 1)):
            expected[recorded[before]] = before
        np.testing.assert_array_equal(cached.known_at(reading), expected)
        cached.record(step, np.array([item]), np.array([float(step)]))
