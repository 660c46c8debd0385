import pytest
import torch
from sklearn.metrics import normalized_mutual_info_score

from nearkin.errors import UserError
from nearkin.evaluation import evaluate, random_gallery_scores
from nearkin.space import Space


@pytest.fixture
def space():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 8, (70,), generator=generator)
    x = torch.randn(8, 4, generator=generator)[labels] + 0.5 * torch.randn(70, 4, generator=generator)
    return Space.of(x, labels)


def test_scores_are_flat_named_numbers_with_one_primary(space):
    evaluation = evaluate(space, recall_at=(1, 10))
    assert list(evaluation.scores) == [
        "recall@1",
        "recall@10",
        "r_precision",
        "map@r",
        "map",
        "queries",
        "queries_without_positives",
        "nmi_geometric",
        "nmi_arithmetic",
        "ami",
        "ari",
        "pairwise_f1",
    ]
    assert all(type(score) is float for score in evaluation.scores.values())
    assert evaluation.scores[evaluation.primary] == evaluation.scores["map@r"]


def test_the_kept_neighbours_are_the_scored_ones(space):
    evaluation = evaluate(space, kept_neighbours=6)
    assert evaluation.neighbours.shape == (70, 6)
    same = space.labels[evaluation.neighbours] == space.labels[:, None]
    for k in (1, 2, 4):
        assert evaluation.scores[f"recall@{k}"] == pytest.approx(same[:, :k].any(1).double().mean().item())
    for mean in ("geometric", "arithmetic"):
        expected = normalized_mutual_info_score(space.labels, evaluation.clusters, average_method=mean)
        assert evaluation.scores[f"nmi_{mean}"] == pytest.approx(expected)


def test_the_seed_affects_only_the_clusters(space):
    noise = Space.of(torch.randn(70, 4, generator=torch.Generator().manual_seed(1)), space.labels)
    first, again, other = evaluate(noise, seed=1), evaluate(noise, seed=1), evaluate(noise, seed=2)
    assert first.scores == again.scores
    assert not torch.equal(first.clusters, other.clusters)
    assert first.scores["map@r"] == other.scores["map@r"]


def test_clustering_can_be_skipped(space):
    evaluation = evaluate(space, clustering=None)
    assert evaluation.clusters is None
    assert not any(name.startswith("nmi") for name in evaluation.scores)


def test_all_items_are_clustered_even_if_few_are_queries(space):
    items = torch.arange(70)
    split = Space(space.embeddings, space.labels, items, items < 10, items >= 10)
    evaluation = evaluate(split)
    assert evaluation.clusters.shape == (70,)
    assert evaluation.neighbours.shape[0] == 10
    assert evaluation.scores["queries"] == 10


def test_broken_embeddings_are_counted_in_the_error(space):
    space.embeddings[3, 1] = float("nan")
    space.embeddings[5] = float("inf")
    with pytest.raises(UserError, match="2 of 70 embeddings contain NaN or infinite values"):
        evaluate(space)


def test_one_class_only_is_a_clear_error():
    with pytest.raises(UserError, match="all 4 items to evaluate have the same class"):
        evaluate(Space.of(torch.randn(4, 2), torch.zeros(4, dtype=torch.long)))


def test_only_singletons_is_a_clear_error():
    with pytest.raises(UserError, match="no query has another item of its class"):
        evaluate(Space.of(torch.randn(4, 2), torch.arange(4)))


def test_recall_at_zero_is_a_clear_error(space):
    with pytest.raises(UserError, match=r"recall_at must be integers >= 1, .* got \[0, 1\]"):
        evaluate(space, recall_at=[0, 1])


def test_embeddings_and_labels_need_no_space(space):
    is_query, is_gallery = torch.arange(70) < 20, torch.arange(70) >= 10
    found = evaluate(space.embeddings.numpy(), space.labels.tolist(), is_query=is_query, is_gallery=is_gallery)
    masked = Space(space.embeddings, space.labels, torch.arange(70), is_query, is_gallery)
    assert found.scores == evaluate(masked).scores != evaluate(space).scores
    assert set(evaluate(space, recall_at=3, clustering=None).scores) & {"recall@1", "recall@3"} == {"recall@3"}


def test_wrong_arguments_are_refused(space):
    with pytest.raises(UserError, match=r"cannot be evaluated without labels; call evaluate\(embeddings, labels\)"):
        evaluate(space.embeddings)
    with pytest.raises(UserError, match="a space has its own labels and masks"):
        evaluate(space, space.labels)
    for clustering in ("k-means", False, True):
        with pytest.raises(UserError, match=r"clustering .* is unknown"):
            evaluate(space, clustering=clustering)
    with pytest.raises(UserError, match="protocol 'random' is unknown; did you mean 'random-gallery'"):
        evaluate(space, protocol="random")


def test_the_protocol_of_random_galleries_adds_their_scores(space):
    found = evaluate(space, recall_at=(1, 5), clustering=None, protocol="random-gallery").scores
    expected = random_gallery_scores(space, recall_at=(1, 5))
    assert {name: found[f"random_gallery_{name}"] for name in expected} == expected


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_cuda_the_scores_are_the_same(space):
    items = torch.arange(70)
    for is_query, is_gallery in ((None, None), (items < 30, items >= 20)):
        here = Space(space.embeddings, space.labels, items, is_query, is_gallery)
        there = Space(space.embeddings.cuda(), space.labels, items, is_query, is_gallery)
        expected, found = evaluate(here, clustering=None), evaluate(there, clustering=None)
        assert found.scores == pytest.approx(expected.scores)
        assert torch.equal(found.neighbours.cpu(), expected.neighbours)
    assert evaluate(there).scores["nmi_geometric"] > 0.5
