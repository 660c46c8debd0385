from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import retrieval as reference

from nearkin.errors import UserError
from nearkin.evaluation import retrieve
from nearkin.evaluation.galleries import cmc, random_galleries, random_gallery_scores
from nearkin.space import Space


def random_space(items=40, classes=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (items,), generator=generator)
    x = torch.randn(classes, 4, generator=generator)[labels] + torch.randn(items, 4, generator=generator)
    return Space.of(x, labels * 7 - 3)


def reference_scores(split, ks):
    x, labels = split.embeddings.double().numpy(), split.labels.numpy()
    return reference.scores(x, labels, split.queries.tolist(), split.gallery.tolist(), ks)


@pytest.mark.parametrize("classes", [2, 8, 30])  # the last with classes of one image
def test_scores_are_mean_and_spread_over_the_galleries(classes):
    space, ks = random_space(classes=classes), (1, 3, 5)
    single = [reference_scores(split, ks) for split in random_galleries(space, repeats=4, seed=9)]
    expected = {}
    for name in ("recall@1", "recall@3", "recall@5", "map"):
        values = [scores[name] for scores in single]
        expected[name] = sum(values) / 4
        expected[f"{name}_sd"] = (sum((value - expected[name]) ** 2 for value in values) / 4) ** 0.5
    found = random_gallery_scores(space, ks, repeats=4, seed=9)
    assert found == pytest.approx(expected)
    assert found["recall@1_sd"] > 0


@settings(max_examples=100, deadline=None)
@given(labels=st.lists(st.integers(-3, 6), min_size=1, max_size=25), seed=st.integers(0, 2**32))
def test_a_gallery_has_one_item_of_each_class_and_all_others_are_queries(labels, seed):
    space = Space.of(torch.zeros(len(labels), 1), torch.tensor(labels))
    splits = list(random_galleries(space, repeats=3, seed=seed))
    assert len(splits) == 3
    for split in splits:
        assert sorted(split.labels[split.gallery].tolist()) == sorted(set(labels))
        assert sorted([*split.gallery.tolist(), *split.queries.tolist()]) == list(range(len(labels)))


def test_every_image_of_a_class_is_drawn_equally_often():
    space = Space.of(torch.zeros(7, 1), [0, 1, 0, 0, 2, 0, 1])
    drawn = Counter(row for split in random_galleries(space, 4000) for row in split.gallery.tolist())
    expected = {0: 1000, 1: 2000, 2: 1000, 3: 1000, 4: 4000, 5: 1000, 6: 2000}
    assert dict(drawn) == pytest.approx(expected, abs=150)  # five standard deviations


def test_classes_of_one_image_are_distractors_and_never_queries():
    pair = Space.of([[0.0], [2.0], [10.0], [12.0]], [0, 0, 1, 1])
    assert random_gallery_scores(pair, [1])["recall@1"] == 1
    distracted = Space.of([[0.0], [2.0], [1.0], [10.0], [12.0]], [0, 0, 5, 1, 1])
    scores = random_gallery_scores(distracted, [1, 2])
    assert (scores["recall@1"], scores["recall@2"], scores["map"]) == (0.5, 1.0, 0.75)


def test_scores_repeat_with_their_seed_and_change_with_another():
    space = random_space()
    assert random_gallery_scores(space, seed=1) == random_gallery_scores(space, seed=1)
    assert random_gallery_scores(space, seed=1) != random_gallery_scores(space, seed=2)


def test_a_split_that_the_space_has_is_not_used():
    space = random_space()
    half = torch.arange(40) < 20
    split = Space(space.embeddings, space.labels, space.items, half, ~half)
    assert random_gallery_scores(split) == random_gallery_scores(space)


def test_map_is_the_mean_reciprocal_rank():
    space = random_space()
    (split,) = random_galleries(space, repeats=1, seed=4)
    reciprocal = (1 / retrieve(split).first_rank.double()).mean().item()
    assert random_gallery_scores(space, repeats=1, seed=4)["map"] == pytest.approx(reciprocal)


@settings(max_examples=50, deadline=None)
@given(first=st.lists(st.integers(0, 12), min_size=1, max_size=20).filter(any), up_to=st.integers(1, 15))
def test_the_match_curve_counts_queries_matched_by_k(first, up_to):
    matched = [rank for rank in first if rank]
    expected = [sum(rank <= k for rank in matched) / len(matched) for k in range(1, up_to + 1)]
    np.testing.assert_allclose(cmc(torch.tensor(first), up_to), expected)


@pytest.mark.parametrize(
    ("space", "options", "expected"),
    [
        (random_space(), {"repeats": 0}, "repeats must be an integer >= 1, got 0"),
        (random_space(), {"recall_at": [0]}, "recall_at must be integers >= 1"),
        (
            Space.of(torch.tensor([[torch.nan], [0], [1]]), [0, 0, 1]),
            {},
            "remove these rows, or lower the learning rate",
        ),
        (Space.of(torch.eye(3), [0, 1, 2]), {}, "no query has another item of its class"),
    ],
)
def test_invalid_input_of_random_galleries_is_refused(space, options, expected):
    with pytest.raises(UserError, match=expected):
        random_gallery_scores(space, **options)
