import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import intervals as reference
from scipy.stats import kstest

from nearkin.errors import UserError
from nearkin.evaluation import Retrieval, evaluate, retrieve
from nearkin.evaluation.intervals import PairedDifference, confidence_intervals, paired_difference
from nearkin.space import Space

COUNTS = {"queries", "queries_without_positives"}


def random_space(items=60, classes=9, seed=0, noise=1.0, **masks):
    generator = torch.Generator().manual_seed(0)  # labels and centres are always the same
    labels = torch.randint(0, classes, (items,), generator=generator) * 7 - 3
    labels[0] = 1000  # a query without positives
    centres = torch.randn(1010, 5, generator=generator)
    generator.manual_seed(seed)
    return Space(
        centres[labels] + noise * torch.randn(items, 5, generator=generator), labels, torch.arange(items), **masks
    )


def values_as_retrieval(values):
    """A retrieval in which all scores are the given values (Q,); Recall@1 is whether a value is above one half."""
    values = torch.as_tensor(values, dtype=torch.float64)
    ones = torch.ones(len(values), dtype=torch.long)
    columns = {"r_precision": values, "map@r": values, "map": values}
    return Retrieval(ones, torch.where(values > 0.5, 1, 2), columns, ones[:, None])


def labelled(classes):
    return Space.of(torch.zeros(len(classes), 1), torch.as_tensor(classes))


def per_query(space, ks):
    found = retrieve(space)
    kept = found.positives > 0
    values = {f"recall@{k}": (found.first_rank[kept] <= k).double().tolist() for k in ks}
    values |= {name: found.values[name][kept].tolist() for name in ("r_precision", "map@r", "map")}
    return values, space.labels[space.queries][kept].tolist()


@pytest.mark.parametrize("over", ["queries", "classes"])
@pytest.mark.parametrize("is_query", [None, torch.arange(60) % 3 > 0])
def test_intervals_equal_a_loop_over_draws(over, is_query):
    space = random_space(is_query=is_query)
    found = confidence_intervals(retrieve(space, recall_at=(1, 3)), space, level=0.8, resamples=101, over=over, seed=5)
    values, classes = per_query(space, (1, 3))
    assert found.keys() == values.keys() == retrieve(space, recall_at=(1, 3)).scores.keys() - COUNTS
    for name, column in values.items():
        groups = reference.groups_of(column, classes if over == "classes" else None)
        expected = reference.bootstrap_interval(groups, 0.8, 101, np.random.default_rng(5))
        assert found[name] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("over", ["queries", "classes"])
def test_paired_differences_equal_a_loop_over_draws_and_flips(over):
    spaces = random_space(noise=1.2), random_space(seed=1)
    first, second = (retrieve(space, recall_at=(1, 3)) for space in spaces)
    found = paired_difference(first, second, *spaces, level=0.9, resamples=99, over=over, seed=5)
    (old, classes), (new, _) = (per_query(space, (1, 3)) for space in spaces)
    assert found.keys() == old.keys()
    for name in old:
        differences = [b - a for a, b in zip(old[name], new[name], strict=True)]
        groups = reference.groups_of(differences, classes if over == "classes" else None)
        random = np.random.default_rng(5)
        low, high = reference.bootstrap_interval(groups, 0.9, 99, random)
        p_value = reference.sign_flip_p_value(groups, 99, random)
        difference = second.scores[name] - first.scores[name]
        expected = (difference, low, high, p_value)
        got = found[name]
        assert (got.difference, got.low, got.high, got.p_value) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=2, max_size=8), st.integers(0, 100))
def test_p_values_approach_the_share_of_all_flips_ties_included(tenths, seed):
    space = labelled(range(len(tenths)))
    differences = [tenth / 10 for tenth in tenths]
    zeros, values = values_as_retrieval([0.0] * len(tenths)), values_as_retrieval(differences)
    found = paired_difference(zeros, values, space, space, resamples=2000, seed=seed)["map"]
    exact = reference.exact_p_value(reference.groups_of(differences))
    assert found.p_value == pytest.approx(exact, abs=0.06)  # five standard errors


def test_an_evaluation_result_can_replace_its_retrieval():
    space, other = random_space(), random_space(seed=1)
    whole, of_other = evaluate(space, clustering=None), evaluate(other, clustering=None)
    assert confidence_intervals(whole, space) == confidence_intervals(whole.retrieval, space)
    by_retrieval = paired_difference(whole.retrieval, of_other.retrieval, space, other)
    assert paired_difference(whole, of_other, space, other) == by_retrieval


def test_the_seed_decides_the_draws():
    space = random_space()
    found = retrieve(space)
    assert confidence_intervals(found, space, seed=1) == confidence_intervals(found, space, seed=1)
    assert confidence_intervals(found, space, seed=1)["map"] != confidence_intervals(found, space, seed=2)["map"]


def test_swapping_the_spaces_flips_the_sign_of_the_difference():
    a, b = random_space(noise=1.5), random_space(seed=1)
    there = paired_difference(retrieve(a), retrieve(b), a, b)["map"]
    back = paired_difference(retrieve(b), retrieve(a), b, a)["map"]
    turned = (-there.difference, -there.high, -there.low, there.p_value)
    assert (back.difference, back.low, back.high, back.p_value) == pytest.approx(turned)


def test_an_interval_covers_the_true_recall_as_often_as_its_level_says():
    random = np.random.default_rng(0)
    space, covered = labelled([0] * 150), 0
    for seed in range(250):
        found = values_as_retrieval(random.random(150) < 0.7)
        low, high = confidence_intervals(found, space, level=0.9, resamples=150, seed=seed)["recall@1"]
        covered += low <= 0.7 <= high
    assert 0.85 < covered / 250 < 0.95


def class_effects(random, classes=40, size=6):
    """(Q,) values around 0.5 that the queries of a class mostly share."""
    return 0.5 + np.repeat(0.1 * random.standard_normal(classes), size) + 0.03 * random.standard_normal(classes * size)


def test_only_drawing_whole_classes_covers_correlated_classes():
    random = np.random.default_rng(0)
    space, covered = labelled(np.repeat(np.arange(40), 6)), {"queries": 0, "classes": 0}
    for seed in range(150):
        found = values_as_retrieval(class_effects(random))
        for over in covered:
            low, high = confidence_intervals(found, space, level=0.9, resamples=150, over=over, seed=seed)["map"]
            covered[over] += low <= 0.5 <= high
    assert covered["queries"] / 150 < 0.7
    assert 0.83 < covered["classes"] / 150 < 0.95


def test_drawing_whole_classes_gives_the_wider_interval_where_classes_correlate():
    found, space = values_as_retrieval(class_effects(np.random.default_rng(0))), labelled(np.repeat(np.arange(40), 6))
    intervals = (confidence_intervals(found, space, over=over)["map"] for over in ("queries", "classes"))
    by_query, by_class = (high - low for low, high in intervals)
    assert by_class > 2 * by_query  # √6 times, were the values of a class all alike


def null_p_values(over):
    random = np.random.default_rng(0)
    space = labelled(np.repeat(np.arange(40), 6))
    for seed in range(150):
        first, second = (values_as_retrieval(class_effects(random)) for _ in range(2))
        yield paired_difference(first, second, space, space, resamples=99, over=over, seed=seed)["map"].p_value


def test_p_values_are_uniform_where_the_spaces_are_alike():
    assert kstest(list(null_p_values("classes")), "uniform").pvalue > 0.05


def test_flipping_single_queries_is_fooled_where_classes_correlate():
    assert np.mean(np.array(list(null_p_values("queries"))) < 0.05) > 0.2


@pytest.mark.parametrize("over", ["queries", "classes"])
def test_a_real_difference_has_a_small_p_value_and_an_interval_without_zero(over):
    worse, better = random_space(items=200, noise=3.0), random_space(items=200, noise=0.5)
    found = paired_difference(retrieve(worse), retrieve(better), worse, better, over=over)["map@r"]
    assert found.p_value < 0.02
    assert 0 < found.low < found.difference < found.high


@pytest.mark.parametrize("over", ["queries", "classes"])
def test_equal_values_give_a_point_and_no_difference(over):
    found, space = values_as_retrieval([0.1] * 30), labelled([0, 1, 2] * 10)
    assert confidence_intervals(found, space, over=over)["map"] == pytest.approx((0.1, 0.1))
    assert paired_difference(found, found, space, space, over=over)["map"] == PairedDifference(0.0, 0.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("classes", "over", "advice"),
    [([0, 0, 0], "classes", 'use over="queries"'), ([0], "queries", "evaluate more queries")],
)
def test_one_class_or_one_query_is_refused(classes, over, advice):
    found, space = values_as_retrieval([0.5] * len(classes)), labelled(classes)
    with pytest.raises(UserError, match=advice):
        confidence_intervals(found, space, over=over)
    with pytest.raises(UserError, match=advice):
        paired_difference(found, found, space, space, over=over)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"level": 95}, "level must be > 0 and < 1, such as 0.95, got 95"),
        ({"level": 0.0}, "got 0.0"),
        ({"resamples": 0}, "resamples must be an integer >= 1, such as 1000, got 0"),
        ({"over": "class"}, "did you mean 'classes'"),
    ],
)
def test_invalid_settings_are_refused(setting, message):
    space = random_space()
    found = retrieve(space)
    with pytest.raises(UserError, match=message):
        confidence_intervals(found, space, **setting)
    with pytest.raises(UserError, match=message):
        paired_difference(found, found, space, space, **setting)


def test_a_retrieval_of_another_space_is_refused():
    space, smaller = random_space(), random_space(items=59)
    with pytest.raises(UserError, match="60 queries, but the space has 59"):
        confidence_intervals(retrieve(space), smaller)
    with pytest.raises(UserError, match="60 queries, but the space has 59"):
        paired_difference(retrieve(smaller), retrieve(space), smaller, smaller)


def test_retrievals_with_different_galleries_cannot_be_paired():
    space, half = random_space(), random_space(is_gallery=torch.arange(60) < 30)
    with pytest.raises(UserError, match="have different positives"):
        paired_difference(retrieve(space), retrieve(half), space, space)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"items": torch.arange(60).flip(0)}, "items of their queries"),
        ({"labels": random_space().labels.roll(1)}, "labels of their queries"),
        ({"is_gallery": torch.arange(60) > 5}, "items of their gallery"),
        ({"is_query": torch.arange(60) > 5}, "items of their queries"),
    ],
)
def test_spaces_with_different_items_cannot_be_paired(change, message):
    space = random_space()
    other = Space(**(vars(space) | change))
    with pytest.raises(UserError, match=message):
        paired_difference(retrieve(space), retrieve(other), space, other)
