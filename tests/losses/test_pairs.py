"""Losses of chosen pairs equal slow references, and pytorch-metric-learning with its miners, memory and wrapper."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning import distances, losses, miners, reducers
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
from reference.batches import random_batch
from reference.margin import margin_loss as margin_oracle
from reference.pairs import ORACLES, Pairs
from torch import Tensor, nn

from nearkin.errors import UserError
from nearkin.losses import (
    ContrastiveLoss,
    LiftedStructureLoss,
    Loss,
    MarginLoss,
    NCALoss,
    NPairsLoss,
    PMLLoss,
    RankApproximationLoss,
    TripletSemiHardLoss,
    make_loss,
)
from nearkin.losses.distances import pairwise_distances, pairwise_squared_distances
from nearkin.losses.pairs import compared, positive_columns
from nearkin.losses.pml import for_pml

OVER_PAIRS: dict[str, Callable[[], Loss]] = {
    "contrastive": partial(ContrastiveLoss, normalize=False),
    "contrastive, squared": partial(ContrastiveLoss, normalize=False, squared=True),
    "triplet": partial(TripletSemiHardLoss, normalize=False),
    "lifted": LiftedStructureLoss,
    "npairs": partial(NPairsLoss, regularization=0.0),
    "nca": NCALoss,
    "rank": RankApproximationLoss,
}
EVERY = {**OVER_PAIRS, "margin": MarginLoss}
WITHOUT_PAIRS = {
    "facility-location": {},
    "magnet": {},
    "proxy-nca": {"classes": 4, "dim": 3},
    "softmax": {"classes": 4, "dim": 3},
    "spectral": {},
}


def expected(name: str, x: Tensor, references: Tensor | None, positive: Pairs, negative: Pairs) -> float:
    kind, _, form = name.partition(", ")
    more: dict[str, Any] = {"squared": True} if form else {}
    if kind == "lifted":
        more["within"] = references is None
    r = x if references is None else references
    return ORACLES[kind](x.numpy(), r.numpy(), positive, negative, **more)


def some_pairs(y: Tensor, r: Tensor, seed: int, share: float) -> tuple[Pairs, Pairs]:
    """A random share of the positive and of the negative pairs."""
    rng = np.random.default_rng(seed)
    every = [(i, j) for i in range(len(y)) for j in range(len(r)) if (r is not y or i != j) and rng.random() < share]
    return {(i, j) for i, j in every if y[i] == r[j]}, {(i, j) for i, j in every if y[i] != r[j]}


def as_indices(positive: Pairs, negative: Pairs) -> tuple[Tensor, ...]:
    columns = [torch.tensor(sorted(pairs), dtype=torch.long).reshape(-1, 2).T for pairs in (positive, negative)]
    return *columns[0], *columns[1]


@pytest.mark.parametrize("name", OVER_PAIRS)
@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 5), st.floats(0, 1), st.booleans())
@settings(max_examples=25, deadline=None)
def test_given_pairs_are_compared_and_no_others(
    name: str, seed: int, items: int, classes: int, share: float, with_references: bool
) -> None:
    x, y = random_batch(seed, items, 3, classes)
    r, of_r = random_batch(seed + 1, 9, 3, classes) if with_references else (None, None)
    pairs = some_pairs(y, y if of_r is None else of_r, seed, share)
    x.requires_grad_()
    found = OVER_PAIRS[name]()(x, y, as_indices(*pairs), r, of_r)
    found.backward()
    assert found.item() == pytest.approx(expected(name, x.detach(), r, *pairs), rel=1e-8, abs=1e-9)
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("name", OVER_PAIRS)
def test_all_pairs_with_references_are_compared_without_a_miner(name: str) -> None:
    (x, y), (r, of_r) = random_batch(0), random_batch(1, items=7)
    pairs = some_pairs(y, of_r, 0, share=1.0)
    assert OVER_PAIRS[name]()(x, y, ref_emb=r, ref_labels=of_r).item() == pytest.approx(expected(name, x, r, *pairs))


@given(st.integers(0, 10_000), st.integers(1, 20), st.integers(1, 8))
@settings(max_examples=40, deadline=None)
def test_the_positives_of_all_pairs_are_found_from_sorted_labels(seed: int, items: int, classes: int) -> None:
    x, y = random_batch(seed, items, classes=classes)
    batch = compared(x, 5 - 3 * y)
    columns, valid = positive_columns(batch)
    rows = torch.arange(items)[:, None].expand_as(columns)
    assert torch.equal(torch.stack([rows[valid], columns[valid]], dim=1), batch.positive.nonzero())
    assert columns.shape[1] == max(1, int(batch.positive.sum(dim=1).max()))


@pytest.mark.parametrize("name", EVERY)
def test_the_gradient_reaches_anchors_and_references(name: str) -> None:
    (x, y), (r, of_r) = random_batch(0), random_batch(1, items=7)
    module = EVERY[name]().double()

    def loss(x: Tensor, r: Tensor) -> Tensor:
        torch.manual_seed(0)
        result: Tensor = module(x, y, None, r, of_r)
        return result

    assert torch.autograd.gradcheck(loss, (x.requires_grad_(), r.requires_grad_()))


@pytest.mark.parametrize("distance", [pairwise_distances, pairwise_squared_distances])
def test_distances_to_references_have_right_first_and_second_derivatives(distance: Callable[..., Tensor]) -> None:
    x, r = random_batch(0, items=5)[0].requires_grad_(), random_batch(1, items=4)[0].requires_grad_()
    slow = torch.linalg.vector_norm(x[:, None] - r, dim=2)
    assert torch.allclose(distance(x, r), slow if distance is pairwise_distances else slow.square())
    assert torch.autograd.gradcheck(distance, (x, r))
    assert torch.autograd.gradgradcheck(distance, (x, r))


@pytest.mark.parametrize("name", EVERY)
def test_the_batch_is_its_own_reference(name: str) -> None:
    x, y = random_batch()
    module = EVERY[name]().double()
    values = []
    for references in ((None, None), (x, y)):
        torch.manual_seed(0)
        values.append(module(x, y, None, *references).item())
    assert values[0] == values[1]


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("lists", [3, 4])
def test_a_miner_that_finds_nothing_gives_zero_loss_and_gradient(name: str, lists: int) -> None:
    x, y = random_batch()
    loss = EVERY[name]().double()(x.requires_grad_(), y, (torch.zeros(0, dtype=torch.long),) * lists)
    loss.backward()
    assert loss.item() == 0.0
    assert x.grad is not None and not x.grad.any()


MINERS = [miners.BatchHardMiner(), miners.BatchEasyHardMiner(), miners.TripletMarginMiner(0.2, "semihard")]
MINERS += [miners.MultiSimilarityMiner(), miners.PairMarginMiner(0.4, 0.9), miners.DistanceWeightedMiner()]
NAMES = [type(miner).__name__ for miner in MINERS]


@pytest.mark.parametrize("miner", MINERS, ids=NAMES)
@pytest.mark.parametrize("name", EVERY)
def test_every_miner_works_with_every_pair_loss(name: str, miner: nn.Module) -> None:
    torch.manual_seed(0)
    x, y = random_batch(items=30, dim=8)
    loss = EVERY[name]().double()(x.requires_grad_(), y, miner(x, y))
    loss.backward()
    assert loss.isfinite()
    assert x.grad is not None and x.grad.isfinite().all()


@pytest.mark.parametrize("miner", [MINERS[0], MINERS[3], MINERS[4]], ids=lambda miner: type(miner).__name__)
@pytest.mark.parametrize("with_references", [False, True])
def test_contrastive_with_mined_pairs_equals_pytorch_metric_learning(miner: nn.Module, with_references: bool) -> None:
    x, y = random_batch(items=30, dim=8)
    references = random_batch(1, items=20, dim=8) if with_references else (None, None)
    mined = miner(x, y, *references)
    assert len(mined[0])
    ours, theirs = ContrastiveLoss()(x, y, mined, *references), losses.ContrastiveLoss()(x, y, mined, *references)
    assert ours.item() == pytest.approx(theirs.item())


@pytest.mark.parametrize("miner", [MINERS[0], MINERS[2]], ids=lambda miner: type(miner).__name__)
@pytest.mark.parametrize("with_references", [False, True])
def test_triplet_with_mined_triplets_equals_pytorch_metric_learning(miner: nn.Module, with_references: bool) -> None:
    x, y = random_batch(items=30, dim=8)
    references = random_batch(1, items=20, dim=8) if with_references else (None, None)
    mined = miner(x, y, *references)
    assert len(mined) == 3
    squares, mean = distances.LpDistance(power=2), reducers.MeanReducer()
    theirs = losses.TripletMarginLoss(0.2, distance=squares, reducer=mean)(x, y, mined, *references)
    assert TripletSemiHardLoss(0.2)(x, y, mined, *references).item() == pytest.approx(theirs.item())
    margin = losses.MarginLoss(margin=0.3)(x, y, mined, *references)
    assert MarginLoss(margin=0.3)(x, y, mined, *references).item() == pytest.approx(margin.item(), rel=1e-6)


def test_lifted_and_npairs_with_mined_pairs_equal_pytorch_metric_learning() -> None:
    x, y = random_batch(items=30, dim=8)
    mined = miners.MultiSimilarityMiner()(x, y)
    plain = distances.LpDistance(normalize_embeddings=False)
    theirs = losses.LiftedStructureLoss(1.0, 0.0, distance=plain, reducer=reducers.MeanReducer())(x, y, mined)
    assert LiftedStructureLoss(1.0)(x, y, mined).item() == pytest.approx(theirs.item())
    products = distances.DotProductSimilarity(normalize_embeddings=False)
    theirs = losses.NTXentLoss(1.0, distance=products)(x, y, mined)
    assert NPairsLoss(0.0)(x, y, mined).item() == pytest.approx(theirs.item())


def test_margin_draws_its_negatives_among_the_given_pairs() -> None:
    x, y = random_batch(items=12)
    anchor, positive, negative = torch.tensor([0]), (y == y[0]).nonzero()[1], (y != y[0]).nonzero()[3]
    loss = MarginLoss(normalize=False).double()
    expected = margin_oracle(x.numpy(), [(0, int(positive), int(negative))], np.full(12, 1.2))
    for _ in range(5):
        assert loss(x, y, (anchor, positive, anchor, negative)).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("mined", [False, True])
@pytest.mark.parametrize("name", EVERY)
def test_a_cross_batch_memory_contains_earlier_batches(name: str, mined: bool) -> None:
    torch.manual_seed(0)
    miner = miners.MultiSimilarityMiner() if mined else None
    memory = losses.CrossBatchMemory(for_pml(EVERY[name]()), embedding_size=3, memory_size=64, miner=miner)
    values = []
    for seed in range(3):
        x, y = random_batch(seed)
        x = x.float().requires_grad_()
        value = memory(x, y)
        value.backward()
        assert x.grad is not None and x.grad.isfinite().all()
        values.append(value.item())
    if name in OVER_PAIRS and not mined:  # the last batch against all three, without itself
        batches = [random_batch(seed) for seed in range(3)]
        r, of_r = torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])
        (x, y), own = batches[-1], len(r) - len(batches[-1][1])
        positive, negative = some_pairs(y, of_r, 0, share=1.0)
        positive -= {(i, own + i) for i in range(len(y))}
        assert values[-1] == pytest.approx(expected(name, x, r, positive, negative), rel=1e-4)


def test_a_memory_made_by_name_accepts_a_nearkin_loss() -> None:
    memory = PMLLoss("CrossBatchMemory", loss=ContrastiveLoss(), embedding_size=3)
    x, y = random_batch()
    assert memory(x.float(), y).item() > 0


@pytest.mark.parametrize("name", [*EVERY, *WITHOUT_PAIRS])
@pytest.mark.filterwarnings("ignore:DistributedLossWrapper is being used")
def test_the_distributed_wrapper_accepts_every_loss(name: str) -> None:
    x, y = random_batch()
    loss = EVERY[name]() if name in EVERY else make_loss(name, **WITHOUT_PAIRS[name])
    values = []
    for each in (loss.double(), DistributedLossWrapper(for_pml(loss))):
        torch.manual_seed(0)
        values.append(each(x, y).item())
    assert values[0] == values[1]


@pytest.mark.parametrize("name", WITHOUT_PAIRS)
def test_a_loss_without_pairs_says_why_it_does_not_accept_them(name: str) -> None:
    x, y = random_batch()
    loss = make_loss(name, **WITHOUT_PAIRS[name]).double()
    with pytest.raises(UserError, match=r"does not accept indices_tuple, because it .+; remove the miner"):
        loss(x, y, miners.BatchHardMiner()(x, y))
    with pytest.raises(UserError, match=r"does not accept ref_emb and ref_labels, because it .+; remove the memory"):
        loss(x, y, ref_emb=x, ref_labels=y)


ROWS = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ({"indices_tuple": ROWS}, "indices_tuple must be pairs"),
        ({"indices_tuple": (ROWS, ROWS)}, r"indices_tuple must be pairs \(anchors, positives, anchors, negatives\)"),
        ({"indices_tuple": (ROWS, ROWS[:1], ROWS)}, "as many anchors as partners"),
        ({"indices_tuple": (ROWS, ROWS, ROWS + 11)}, "contains rows outside 0…11; pass the batch that was mined"),
        ({"ref_emb": torch.zeros(2, 3)}, "ref_emb needs labels; pass ref_labels"),
        ({"ref_labels": ROWS}, "pass both"),
        ({"ref_emb": torch.zeros(2, 4), "ref_labels": ROWS}, "ref_emb has 4 dimensions, but embeddings have 3"),
        ({"ref_emb": torch.zeros(2, 3), "ref_labels": [0]}, "do not match 2 embeddings"),
        ({"ref_emb": torch.full((2, 3), torch.nan), "ref_labels": ROWS}, "NaN"),
    ],
)
def test_invalid_pairs_are_refused(pairs: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        compared(*random_batch(), **pairs)
