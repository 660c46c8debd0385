"""A batch costs the same however many items, classes and clusters there are.

The cost is the memory that drawing a batch allocates: whatever computes something for all items or classes (a
permutation, a mask, distances) has to write the result somewhere.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from nearkin.sampling import (
    ClassNeighbourhoodSampler,
    ClassRatioSampler,
    ClusterIndex,
    GroupSampler,
    LabelBatchSampler,
    NeighbourhoodSampler,
    PairSampler,
    PartitionSampler,
    RandomBatchSampler,
)

SKIPPED = 40  # first batches: those read ahead, before losses count, and what is drawn once per epoch


def labels(items: int, per_class: int) -> np.ndarray:
    return np.arange(items) // per_class


def neighbourhoods(items: int, per_class: int) -> NeighbourhoodSampler:
    sampler = NeighbourhoodSampler(labels(items, per_class), 48, 4)
    clusters = 2 * (items // per_class)  # of half a class each
    impostors = (np.arange(clusters)[:, None] + 2 + np.arange(11)) % clusters
    sampler.refresh(ClusterIndex(labels(items, per_class // 2), impostors))
    return sampler


def class_neighbourhoods(items: int, per_class: int) -> ClassNeighbourhoodSampler:
    sampler = ClassNeighbourhoodSampler(labels(items, per_class), 16, 4)
    classes = items // per_class
    sampler.refresh((np.arange(classes)[:, None] + 1 + np.arange(2)) % classes)
    return sampler


def partition(items: int, per_class: int) -> PartitionSampler:
    sampler = PartitionSampler(labels(items, per_class), 16, lambda own, size, seed: GroupSampler(own, size, 4, seed))
    sampler.divide(np.array_split(np.arange(items), 2))
    return sampler


SAMPLERS: dict[str, Callable[[int, int], LabelBatchSampler]] = {
    "random": lambda items, per_class: RandomBatchSampler(labels(items, per_class), 16),
    "groups": lambda items, per_class: GroupSampler(labels(items, per_class), 16, 4),
    "pairs": lambda items, per_class: PairSampler(labels(items, per_class), 16),
    "class ratio": lambda items, per_class: ClassRatioSampler(labels(items, per_class), 16, 0.25, 0.5),
    "neighbourhoods": neighbourhoods,
    "class neighbourhoods": class_neighbourhoods,
    "partition": partition,
}


def cost(sampler: LabelBatchSampler) -> int:
    """The most bytes that drawing one of some batches needs, and telling the sampler about it."""
    epoch = iter(sampler)
    rng = np.random.default_rng(0)
    peaks, before = [], 0
    for step, batch in enumerate(epoch):
        if isinstance(sampler, NeighbourhoodSampler):
            sampler.losses.record(step, np.array(batch), rng.exponential(size=len(batch)))
        if isinstance(sampler, PartitionSampler):
            sampler.part_of(step)
        if step >= SKIPPED:
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
        if step == SKIPPED + 10:
            return max(peaks)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
    raise AssertionError("the epoch is too short")


@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize(
    "sizes", [((4_000, 10), (100_000, 10)), ((4_000, 200), (100_000, 5_000))], ids=["more classes", "larger classes"]
)
def test_a_batch_costs_the_same_with_25_times_as_many_items(kind: str, sizes: list[tuple[int, int]]) -> None:
    costs = []
    for items, per_class in sizes:
        sampler = SAMPLERS[kind](items, per_class)
        tracemalloc.start()
        try:
            costs.append(cost(sampler))
        finally:
            tracemalloc.stop()
    small, large = costs
    assert large < 1.2 * small + 4096  # an array of all items takes 800 kB
