from pathlib import Path

import numpy as np
import pytest
import torch

from nearkin.evaluation import cluster_scores, find_clusters
from nearkin.space import Space

GOLDEN = np.load(Path(__file__).parent.parent / "golden" / "nmi.npz")


def entropy(groups):
    shares = np.unique(groups, return_counts=True)[1] / len(groups)
    return -(shares * np.log(shares)).sum()


def mutual_information(a, b):
    pairs = [f"{x} {y}" for x, y in zip(a, b, strict=True)]
    return entropy(a) + entropy(b) - entropy(pairs)


def test_both_means_are_those_of_the_papers():
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


def test_the_true_number_of_classes_is_looked_for():
    x = torch.randn(90, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(90) % 13 * 100
    clusters = find_clusters(Space.of(x, labels))
    assert clusters.shape == (90,)
    assert len(clusters.unique()) == 13
