"""Batches have the documented composition, depend only on seed and epoch, and can be resumed anywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.samplers import group_batches, items_by_class, ratio_batches
from scipy.stats import chi2_contingency
from torch.utils.data import DataLoader

import nearkin.sampling
from nearkin.errors import UserError
from nearkin.sampling import (
    ClassNeighbourhoodSampler,
    ClassRatioSampler,
    GroupSampler,
    LabelBatchSampler,
    NeighbourhoodSampler,
    PairSampler,
    PartitionSampler,
    RandomBatchSampler,
    share_of,
)

LABELS = np.repeat(np.arange(20), 10)
Make = Callable[[int], LabelBatchSampler]
SAMPLERS: dict[str, Make] = {
    "random": lambda seed: RandomBatchSampler(LABELS, 32, seed),
    "n-group": lambda seed: GroupSampler(LABELS, 32, 4, seed),
    "pairs": lambda seed: PairSampler(LABELS, 32, seed),
    "class-ratio": lambda seed: ClassRatioSampler(LABELS, 32, 0.25, 0.5, seed),
}


EVERY_SAMPLER: dict[str, Callable[[Any], LabelBatchSampler]] = {
    "random": lambda labels: RandomBatchSampler(labels, 32),
    "n-group": lambda labels: GroupSampler(labels, 32, 4),
    "pairs": lambda labels: PairSampler(labels, 32),
    "class-ratio": lambda labels: ClassRatioSampler(labels, 32, 0.25, 0.5),
    "neighbourhoods": lambda labels: NeighbourhoodSampler(labels, 32, 4),
    "class neighbourhoods": lambda labels: ClassNeighbourhoodSampler(labels, 32, 4),
    "partition": lambda labels: PartitionSampler(labels, 32, RandomBatchSampler),
}


@pytest.fixture(params=SAMPLERS)
def make(request: pytest.FixtureRequest) -> Make:
    return SAMPLERS[request.param]


def test_seed_and_epoch_determine_the_batches(make: Make) -> None:
    first, again, other = make(1), make(1), make(2)
    epochs = [list(first), list(first)]
    assert epochs == [list(again), list(again)]
    assert epochs[0] != epochs[1]
    assert epochs[0] != list(other)


def test_every_batch_is_full_and_without_repeats(make: Make) -> None:
    sampler = make(0)
    batches = list(sampler)
    assert len(batches) == len(sampler) == 200 // 32
    assert all(len(batch) == len(set(batch)) == 32 for batch in batches)


def test_an_epoch_can_be_left_and_continued_anywhere(make: Make) -> None:
    whole = list(make(3)), list(make(3))
    sampler = make(3)
    iterator = iter(sampler)
    begun = [next(iterator) for _ in range(2)]
    state = sampler.state_dict()
    continued = make(3)
    continued.load_state_dict(state)
    assert begun + list(continued) == whole[0]
    assert continued.state_dict() == {"epoch": 1, "position": 0}


def test_it_works_with_a_data_loader(make: Make) -> None:
    items = torch.arange(200)
    loader = DataLoader(torch.utils.data.TensorDataset(items), batch_sampler=make(0))
    sampler = make(0)
    assert isinstance(sampler, torch.utils.data.Sampler)
    for epoch in (0, 1):
        assert [batch[0].tolist() for batch in loader] == list(sampler), f"epoch {epoch}"


def test_worker_processes_that_read_ahead_get_the_same_batches() -> None:
    labels = ["cat", "dog", "owl", "yak"] * 64
    dataset = [(torch.tensor(item), label) for item, label in enumerate(labels)]
    loader = DataLoader(
        dataset, batch_sampler=nearkin.sampling.GroupSampler(labels, 32, per_class=8), num_workers=1, prefetch_factor=4
    )
    for _ in range(2):
        batches = list(loader)
        assert len(batches) == 8
        assert all(Counter(texts) == dict.fromkeys(("cat", "dog", "owl", "yak"), 8) for _, texts in batches)


def test_an_epoch_can_be_chosen(make: Make) -> None:
    epochs = make(0)
    in_turn = [list(epochs) for _ in range(3)]
    sampler = make(0)
    next(iter(sampler))  # left in the middle
    for epoch in (2, 0, 1):
        sampler.set_epoch(epoch)
        assert list(sampler) == in_turn[epoch]


@pytest.mark.parametrize("kind", EVERY_SAMPLER)
@pytest.mark.parametrize(
    "given",
    [
        LABELS.tolist(),
        torch.from_numpy(LABELS),
        torch.from_numpy(LABELS).float()[:, None],
        [f"class {label:02d}" for label in LABELS],
        np.array([f"class {label:02d}" for label in LABELS], dtype=object),
        LABELS - 100,
    ],
    ids=["list", "tensor", "float column", "strings", "objects", "negative"],
)
def test_labels_can_have_any_type(kind: str, given: Any) -> None:
    assert list(EVERY_SAMPLER[kind](given)) == list(EVERY_SAMPLER[kind](LABELS)) != []


def test_no_sampler_has_the_name_of_a_torch_sampler() -> None:
    theirs = {name for name in vars(torch.utils.data) if name.endswith("Sampler")}
    assert "RandomSampler" in theirs
    assert not theirs & set(nearkin.sampling.__all__)


def test_random_batches_contain_every_item_about_once() -> None:
    counts = Counter(item for batch in RandomBatchSampler(LABELS, 25) for item in batch)
    assert set(counts.values()) == {1} and len(counts) == 200


def test_batches_have_n_items_of_each_class() -> None:
    for batch in GroupSampler(LABELS, 32, per_class=4):
        assert sorted(Counter(LABELS[batch].tolist()).values()) == [4] * 8


def test_more_classes_fill_the_batch_if_classes_are_small() -> None:
    labels = np.array([0, 0, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4])
    sampler = GroupSampler(labels, batch_size=10, per_class=4)
    for epoch in range(20):
        sampler.epoch, sampler.position = epoch, 0
        for batch in sampler:
            counts = Counter(labels[batch].tolist())
            assert sum(counts.values()) == 10
            assert all(count <= 4 for count in counts.values())
            assert len(counts) >= 3


def test_every_class_is_drawn_equally_often() -> None:
    sampler = GroupSampler(LABELS, 20, per_class=5)  # 4 of 20 classes a batch, 10 batches: every class twice
    counts = Counter(LABELS[item] for batch in sampler for item in batch)
    assert set(counts.values()) == {10}


@given(st.lists(st.integers(1, 9), min_size=2, max_size=12), st.integers(1, 5), st.integers(2, 20))
@settings(max_examples=60, deadline=None)
def test_groups_are_those_of_the_plain_definition(sizes: list[int], per_class: int, batch_size: int) -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    makers: list[tuple[Callable[[], GroupSampler], int]] = [
        (lambda: GroupSampler(labels, batch_size, per_class), 1),
        (lambda: PairSampler(labels, batch_size), 2),
    ]
    for make_sampler, fewest in makers:
        try:
            sampler = make_sampler()
        except UserError:
            continue
        members = [items for items in items_by_class(labels) if len(items) >= fewest]
        expected = group_batches(members, batch_size, sampler.per_class, np.random.default_rng((0, 0)))
        for batch, plain in zip(sampler, expected, strict=False):
            assert batch == plain.tolist()


def test_pairs_are_adjacent_and_singletons_are_excluded() -> None:
    labels = np.array([0, 0, 1, 1, 1, 2, 3, 3, 4])
    for batch in PairSampler(labels, 6):
        pairs = labels[batch].reshape(-1, 2)
        assert (pairs[:, 0] == pairs[:, 1]).all()
        assert len(set(pairs[:, 0])) == 3


@given(
    st.lists(st.integers(1, 30), min_size=3, max_size=30),
    st.integers(2, 40),
    st.floats(0.05, 1),
    st.floats(0, 0.5),
    st.integers(0, 99),
)
@settings(max_examples=100, deadline=None)
def test_the_class_ratio_is_kept(sizes: list[int], batch_size: int, lowest: float, more: float, seed: int) -> None:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    try:
        sampler = ClassRatioSampler(labels, batch_size, lowest, min(1.0, lowest + more), seed)
    except UserError:
        return
    for batch in sampler:
        classes = len(set(labels[batch].tolist()))
        assert len(set(batch)) == batch_size
        assert sampler.fewest <= classes <= sampler.most


def test_batches_of_a_class_ratio_are_distributed_as_in_the_plain_definition() -> None:
    """Sizes so unequal that small classes must often be replaced by larger ones."""
    labels = np.repeat(np.arange(7), [1, 1, 1, 2, 4, 8, 12])
    members = items_by_class(labels)
    sampler = ClassRatioSampler(labels, 10, 0.2, 0.4)
    ours = sampler.batches(np.random.default_rng(0))
    plain = ratio_batches(members, 10, 2, 4, np.random.default_rng(1))
    both = [np.stack(list(islice(batches, 4000))) for batches in (ours, plain)]

    def alike(counts: list[dict[Any, int]]) -> bool:
        keys = list(counts[0].keys() | counts[1].keys())
        table = [[count.get(key, 0) + 5 for key in keys] for count in counts]
        return bool(chi2_contingency(np.array(table)).pvalue > 0.001)

    assert alike([Counter(frozenset(labels[batch].tolist()) for batch in batches) for batches in both])
    assert alike([Counter(batches[:, 0].tolist()) for batches in both])  # one item of each class comes first
    assert alike([Counter(batches[:, -1].tolist()) for batches in both])
    assert alike([Counter(tuple(sorted(batch[[0, -1]])) for batch in batches) for batches in both])


def test_the_shares_of_all_processes_form_the_batch_in_order() -> None:
    batch = np.arange(12)
    shares = [share_of(batch, rank, 3) for rank in range(3)]
    assert np.concatenate(shares).tolist() == batch.tolist()
    with pytest.raises(UserError, match="cannot be split evenly across 5 processes; use a batch size"):
        share_of(batch, 0, 5)


@pytest.mark.parametrize(
    ("make_wrong", "expected"),
    [
        (lambda: RandomBatchSampler([0, 1], 3), "2 training items cannot fill a batch of 3; use batch_size=2 or less"),
        (lambda: RandomBatchSampler([0, 1], 1), "batch_size must be an integer >= 2, got 1"),
        (lambda: GroupSampler([0] * 50 + [1] * 50, 32, 4), "batch_size=8 or less"),
        (lambda: GroupSampler([0, 0, 1, 1], 1, 4), "batch_size must be an integer >= 2, got 1"),
        (lambda: GroupSampler([0, 0, 1, 1], 2, 0), "per_class must be an integer >= 1, got 0"),
        (lambda: PairSampler([0, 1, 2, 3], 4), "4 training items cannot fill a batch of 4; add items"),
        (
            lambda: GroupSampler([0, 0, 1, 1], 4, 9),
            "a batch of 4 items has no room for 9 items of a class; use per_class=4 or less",
        ),
        (lambda: PairSampler([0, 0, 1, 1], 3), "batch_size must be even to draw pairs, got 3"),
        (lambda: RandomBatchSampler([[0, 1], [1, 0]], 2), r"labels must have shape \(items,\), got \(2, 2\)"),
        (lambda: RandomBatchSampler([0.0, float("nan")], 2), "some labels are NaN"),
        (lambda: RandomBatchSampler(np.array(["cat", None, 3], dtype=object), 2), "all numbers or all strings"),
        (lambda: ClassRatioSampler([0, 0, 1, 1], 4, 0.9, 0.9), "cannot be drawn"),
        (lambda: ClassRatioSampler([0, 0, 1, 1], 4, 0.5, 0.2), "lowest <= highest <= 1, got 0.5 and 0.2"),
    ],
)
def test_impossible_batches_are_refused(make_wrong: Callable[[], object], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        make_wrong()


def test_the_next_epoch_starts_after_exactly_the_batches_of_one() -> None:
    asks_once_more, counts = (GroupSampler(np.arange(40) // 4, batch_size=8, per_class=4) for _ in range(2))
    for _ in range(3):
        assert list(asks_once_more) == list(islice(counts, len(counts)))
    assert (counts.epoch, counts.position) == (3, 0)


def test_a_saved_position_after_the_last_batch_is_the_start_of_the_next_epoch() -> None:
    old, new = (GroupSampler(np.arange(40) // 4, batch_size=8, per_class=4) for _ in range(2))
    old.load_state_dict({"epoch": 0, "position": len(old)})
    new.epoch = 1
    assert list(old) == list(new) != []
