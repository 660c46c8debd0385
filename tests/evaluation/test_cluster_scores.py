from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score

from nearkin.clustering import spectral_partition
from nearkin.errors import UserError
from nearkin.evaluation import cluster_scores, evaluate, find_clusters
from nearkin.space import Space

GOLDEN = np.load(Path(__file__).parent.parent / "golden" / "nmi.npz")


def entropy(groups):
    shares = np.unique(groups, return_counts=True)[1] / len(groups)
    return -(shares * np.log(shares)).sum()


def mutual_information(a, b):
    pairs = [f"{x} {y}" for x, y in zip(a, b, strict=True)]
    return entropy(a) + entropy(b) - entropy(pairs)


def test_both_means_equal_those_of_the_papers():
    generator = np.random.default_rng(0)
    a, b = generator.integers(0, 7, 200), generator.integers(0, 5, 200)
    b[:100] = a[:100]
    scores = cluster_scores(torch.from_numpy(a), torch.from_numpy(b))
    shared = mutual_information(a, b)
    assert scores["nmi_geometric"] == pytest.approx(shared / np.sqrt(entropy(a) * entropy(b)))
    assert scores["nmi_arithmetic"] == pytest.approx(2 * shared / (entropy(a) + entropy(b)))


@pytest.mark.parametrize("case", sorted({key.split("/")[0] for key in GOLDEN.files}))
def test_agrees_with_golden_numbers(case):
    a, b = (torch.from_numpy(GOLDEN[f"{case}/{side}"]) for side in "ab")
    scores = cluster_scores(a, b)
    for mean in ("geometric", "arithmetic"):
        assert scores[f"nmi_{mean}"] == pytest.approx(GOLDEN[f"{case}/{mean}"].item(), abs=1e-12)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=40))
@settings(max_examples=200, deadline=None)
def test_adjusted_scores_equal_scikit_learn(pairs):
    truth, found = np.array(pairs).T
    scores = cluster_scores(torch.from_numpy(found), torch.from_numpy(truth))
    assert scores["ari"] == pytest.approx(adjusted_rand_score(truth, found))
    # Otherwise the quotient is dominated by rounding errors.
    if 1 < len(set(truth)) < len(truth) and 1 < len(set(found)) < len(found):
        assert scores["ami"] == pytest.approx(adjusted_mutual_info_score(truth, found), abs=1e-9)


def test_the_same_clustering_with_other_numbers_is_perfect():
    groups = torch.arange(30) // 4
    assert list(cluster_scores(100 - groups, groups).values()) == pytest.approx([1.0] * 5)
    one = torch.zeros(5, dtype=torch.long)
    assert list(cluster_scores(one, one).values()) == [1.0] * 5
    for n in range(2, 40):  # each item a group of its own
        assert cluster_scores(torch.arange(n), torch.arange(n).flip(0))["ami"] == 1.0


def test_pairwise_f1_counts_pairs():
    rng = np.random.default_rng(0)
    for _ in range(20):
        truth, found = rng.integers(0, 4, 12), rng.integers(0, 3, 12)
        pairs = [(truth[i] == truth[j], found[i] == found[j]) for i in range(12) for j in range(i)]
        both = sum(a and b for a, b in pairs)
        precision, recall = both / sum(b for _, b in pairs), both / sum(a for a, _ in pairs)
        expected = 2 * precision * recall / (precision + recall) if both else 0.0
        scores = cluster_scores(torch.from_numpy(found), torch.from_numpy(truth))
        assert scores["pairwise_f1"] == pytest.approx(expected)


def test_there_are_as_many_clusters_as_classes():
    x = torch.randn(90, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(90) % 13 * 100
    clusters = find_clusters(Space.of(x, labels))
    assert clusters.shape == (90,)
    assert len(clusters.unique()) == 13


def two_lines():
    """Two classes on parallel lines near each other: k-means cuts both in the middle; whitening separates them."""
    along = torch.linspace(-100, 100, 30)
    return Space.of(torch.cat([torch.stack([along, side + 0 * along], 1) for side in (-1, 1)]), torch.arange(60) // 30)


def test_spectral_clusters_equal_the_spectral_partition():
    space = two_lines()
    for seed in (0, 3):
        expected = spectral_partition(space.embeddings, 2, seed).assignment
        assert torch.equal(find_clusters(space, seed, "spectral"), expected)


def test_dimensions_with_little_variance_do_not_hide_spectral_clusters():
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(8, 128, generator=generator)
    labels = torch.arange(32) % 8
    space = Space.of(centres[labels] + 0.05 * torch.randn(32, 128, generator=generator), labels)
    assert evaluate(space, clustering="spectral").scores["ari"] == pytest.approx(1)


def test_the_partition_affects_only_the_clustering_scores():
    space = two_lines()
    plain, spectral = evaluate(space), evaluate(space, clustering="spectral")
    assert plain.scores["ari"] < 0.9 < spectral.scores["ari"]
    assert spectral.scores.keys() == plain.scores.keys()
    assert spectral.scores["map"] == plain.scores["map"]
    assert torch.equal(spectral.clusters, find_clusters(space, 0, "spectral"))


def test_another_partition_is_refused_with_the_known_ones():
    with pytest.raises(UserError, match="clustering 'spectrum' is unknown; did you mean 'spectral'"):
        find_clusters(two_lines(), clustering="spectrum")
