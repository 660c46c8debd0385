from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import retrieval as reference
from reference.spaces import DEVICES, difficult_points, three_tight_groups
from sklearn.metrics import average_precision_score

from nearkin.clustering import distances
from nearkin.errors import UserError
from nearkin.evaluation import ranking, retrieve
from nearkin.evaluation import retrieval as retrieval_room
from nearkin.space import Space

GOLDEN = Path(__file__).parent.parent / "golden"
KS = (1, 2, 4, 8, 1000)


def random_space(items=60, classes=9, dim=5, seed=0, is_query=None, is_gallery=None):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (items,), generator=generator)
    centres = torch.randn(classes, dim, generator=generator)
    x = centres[labels] + torch.randn(items, dim, generator=generator)
    return Space(x, labels * 7 - 3, torch.arange(items), is_query, is_gallery)


def reference_scores(space, ks=KS):
    x, labels = space.embeddings.double().numpy(), space.labels.numpy()
    return reference.scores(x, labels, space.queries.tolist(), space.gallery.tolist(), ks)


def reference_neighbours(space, k):
    x = space.embeddings.double().numpy()
    rankings = reference.ranked_gallery(x, space.queries.tolist(), space.gallery.tolist())
    return [ranking[:k] for ranking in rankings]


@pytest.mark.parametrize("classes", [2, 9, 40])  # many positives (sorted), few (counted), singletons
@pytest.mark.parametrize("seed", range(3))
def test_scores_equal_their_definitions(classes, seed):
    space = random_space(classes=classes, seed=seed)
    found = retrieve(space, recall_at=KS)
    assert found.scores == pytest.approx(reference_scores(space))
    assert found.neighbours.tolist() == reference_neighbours(space, 10)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_ties_duplicates_and_splits_are_ranked_by_lowest_gallery_row(data):
    n = data.draw(st.integers(3, 40))
    x = torch.tensor(data.draw(st.lists(st.integers(-2, 2), min_size=2 * n, max_size=2 * n))).float().reshape(n, 2)
    labels = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)))
    masks = st.none() | st.lists(st.booleans(), min_size=n, max_size=n).map(torch.tensor)
    space = Space(x, labels, torch.arange(n), data.draw(masks), data.draw(masks))
    try:
        found = retrieve(
            space, kept_neighbours=3, recall_at=KS, block_bytes=data.draw(st.sampled_from([1, 400, 10**6]))
        )
    except UserError:
        lists = reference.ranked_gallery(x.numpy(), space.queries.tolist(), space.gallery.tolist())
        assert not any(map(any, reference.relevance(labels.numpy(), space.queries.tolist(), lists)))
        return
    assert found.scores == pytest.approx(reference_scores(space))
    expected = reference_neighbours(space, found.neighbours.shape[1])
    assert found.neighbours.tolist() == expected


def test_an_item_that_is_query_and_gallery_is_not_its_own_neighbour():
    items = torch.arange(60)
    space = random_space(is_query=items < 30, is_gallery=(items >= 20) & (items % 5 > 0))
    found = retrieve(space, kept_neighbours=60, recall_at=KS)
    assert found.neighbours.shape == (30, 31), "32 in the gallery, and itself left out"
    assert (found.neighbours != space.queries[:, None]).all()
    assert torch.isin(found.neighbours, space.gallery).all()
    assert found.scores == pytest.approx(reference_scores(space))


def test_separate_queries_may_find_the_whole_gallery():
    items = torch.arange(20)
    space = random_space(items=20, classes=3, is_query=items < 10, is_gallery=items >= 10)
    found = retrieve(space, kept_neighbours=50)
    assert found.neighbours.sort().values.tolist() == [list(range(10, 20))] * 10


def test_one_positive_in_the_gallery_makes_r_precision_and_map_at_r_recall_at_1():
    labels = torch.arange(25).repeat(2)
    x = torch.randn(25, 4, generator=torch.Generator().manual_seed(0)).repeat(2, 1)
    x += 0.7 * torch.randn(50, 4, generator=torch.Generator().manual_seed(1))
    items = torch.arange(50)
    scores = retrieve(Space(x, labels, items, items < 25, items >= 25)).scores
    assert 0 < scores["recall@1"] < 1
    assert scores["r_precision"] == scores["map@r"] == scores["recall@1"]


def test_map_agrees_with_scikit_learn():
    space = random_space(items=50, classes=5)
    x, labels = space.embeddings, space.labels
    expected = []
    for q in range(50):
        others = torch.arange(50) != q
        closeness = -(x[others] - x[q]).norm(dim=1)
        expected.append(average_precision_score(labels[others] == labels[q], closeness))
    np.testing.assert_allclose(retrieve(space).values["map"], expected)


@pytest.mark.parametrize("name", ["p01_m16_c4_d8", "p02_m32_c8_d8", "p05_m128_c16_d8_unnorm", "p07_dups_m32_c8_d8"])
def test_recall_agrees_with_golden_numbers(name):
    golden = np.load(GOLDEN / f"{name}.npz")
    found = retrieve(Space.of(torch.from_numpy(golden["x"]), torch.from_numpy(golden["labels"]).long()))
    scores = found.scores
    assert [scores[f"recall@{k}"] for k in (1, 2, 4, 8)] == pytest.approx(golden["recall_at_1_2_4_8"].tolist())


def test_golden_singletons_are_left_out_of_the_mean_and_counted():
    golden = np.load(GOLDEN / "p06_singletons_m32_c12_d8.npz")
    labels = torch.from_numpy(golden["labels"]).long()
    singletons = sum((labels == label).sum() == 1 for label in labels).item()
    scores = retrieve(Space.of(torch.from_numpy(golden["x"]), labels)).scores
    assert scores["queries"] == 32 - singletons
    assert scores["queries_without_positives"] == singletons == 6
    # The golden numbers count a singleton as a miss.
    recalls = [scores[f"recall@{k}"] * (32 - singletons) / 32 for k in (1, 2, 4, 8)]
    assert recalls == pytest.approx(golden["recall_at_1_2_4_8"].tolist())


def test_blocks_change_nothing_and_stay_within_their_budget(monkeypatch):
    space = random_space(items=101, classes=12)
    expected = retrieve(space)
    blocks = []

    class Recording(distances.Distances):
        def block(self, queries):
            blocks.append(super().block(queries))
            return blocks[-1]

    monkeypatch.setattr(retrieval_room, "Distances", Recording)
    found = retrieve(space, block_bytes=2000)
    assert len(blocks) == 26
    assert max(block.squares.nbytes for block in blocks) <= 2000
    for name in ("positives", "first_rank", "values", "neighbours"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), equal_nan=True, rtol=0, atol=0)


def test_counting_as_on_cuda_gives_the_same_results(monkeypatch):
    space = random_space(items=80, classes=4)
    expected = retrieve(space)
    monkeypatch.setattr(ranking, "count_by_row", ranking.count_by_comparing)
    assert retrieve(space).scores == expected.scores
    assert torch.equal(retrieve(space).neighbours, expected.neighbours)


@pytest.mark.parametrize("device", DEVICES)
def test_tight_groups_are_separated(device):
    x, labels = three_tight_groups()
    scores = retrieve(Space.of(x.to(device), labels.to(device))).scores
    assert scores["recall@1"] == scores["map@r"] == 1
    assert scores == pytest.approx(reference_scores(Space.of(x, labels), (1, 2, 4, 8)))


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_scores_of_difficult_spaces_equal_float64(device, data):
    x = data.draw(difficult_points(least=3))
    labels = torch.tensor(data.draw(st.lists(st.integers(0, 2), min_size=len(x), max_size=len(x))))
    space = Space.of(x, labels)
    if len(labels.unique()) == len(labels):
        return
    found = retrieve(space.to(device), kept_neighbours=3, recall_at=KS)
    assert found.scores == pytest.approx(reference_scores(space))
    assert found.neighbours.tolist() == reference_neighbours(space, found.neighbours.shape[1])


def test_a_space_far_from_the_origin_has_the_same_scores():
    space = random_space(items=200, classes=20)
    x = (space.embeddings * 64).round() / 64  # so that the shift itself loses nothing
    moved = retrieve(Space.of(x + 8192, space.labels)).scores
    assert moved == retrieve(Space.of(x, space.labels)).scores


def test_collapsed_space_is_ranked_by_gallery_row():
    space = Space.of(torch.ones(6, 3), torch.tensor([0, 1, 0, 1, 0, 1]))
    assert retrieve(space, kept_neighbours=2).neighbours.tolist() == [[1, 2], [0, 2], *[[0, 1]] * 4]
    assert retrieve(space, recall_at=KS).scores == pytest.approx(reference_scores(space))


def test_no_query_with_a_positive_is_a_clear_error():
    with pytest.raises(UserError, match="no query has another item of its class in the gallery"):
        retrieve(Space.of(torch.eye(3), torch.arange(3)))
