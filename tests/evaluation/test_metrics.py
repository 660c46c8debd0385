"""A metric is declared once, where it is computed; scores, tables and docs follow."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import nearkin.methods  # noqa: F401 (declares what methods read out)
from nearkin.errors import UserError
from nearkin.evaluation import describe, evaluate, known_metrics, metric, metrics, score_name, score_text
from nearkin.evaluation.intervals import confidence_intervals
from nearkin.space import Space

OWN = """
from nearkin.evaluation import PositiveRanks, metric


@metric("mean_rank", "Mean rank", "mean rank of all positives", higher_is_better=False, needs="ranks", decimals=1)
def mean_rank(ranks: PositiveRanks):
    return ranks.mean(ranks.ranks)


@metric("hit@{k}", "Hit@{k}", "1 if the {k} nearest hold a positive", higher_is_better=True, needs="first rank")
def hit_at(first, k):
    return first <= k


@metric("norm", "Norm", "mean length", higher_is_better=None, needs="space")
def norm(space):
    return space.embeddings.norm(dim=1).mean()


@metric("found_clusters", "Clusters", "how many", higher_is_better=None, needs="clusters", decimals=0)
def found_clusters(clusters, labels):
    return len(clusters.unique())
"""


@pytest.fixture
def _own_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Custom metrics from an imported file."""
    monkeypatch.setattr(metrics, "_metrics", dict(metrics._metrics))
    (tmp_path / "own_metrics.py").write_text(OWN)
    spec = importlib.util.spec_from_file_location("own_metrics", tmp_path / "own_metrics.py")
    assert spec and spec.loader
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    yield


@pytest.mark.usefixtures("_own_metrics")
def test_a_custom_metric_is_among_the_scores_and_in_the_table() -> None:
    space = Space.of([[0.0], [1.0], [5.0], [2.0]], ["a", "a", "b", "b"])
    result = evaluate(space, recall_at=[1, 3])
    assert result.scores["mean_rank"] == (1 + 1 + 1 + 3) / 4
    assert (result.scores["hit@1"], result.scores["hit@3"]) == (0.75, 1.0)
    assert result.scores["norm"] == 2.0 and result.scores["found_clusters"] == 2
    rows = dict(re.findall(r"│ (.*?) +│ +(\S+) │", str(result)))
    assert rows["Mean rank ↓"] == "1.5" and rows["Hit@3 ↑"] == "1.0000" and rows["Clusters"] == "2"
    assert "mean_rank" in confidence_intervals(result, space)
    assert "found_clusters" not in evaluate(space, clustering=None).scores


@pytest.mark.parametrize(("value", "found"), [(0.5, "a float"), (torch.zeros(2, 2), r"shape \(2, 2\)")])
def test_a_metric_that_returns_something_else_is_refused(
    monkeypatch: pytest.MonkeyPatch, value: object, found: str
) -> None:
    monkeypatch.setattr(metrics, "_metrics", dict(metrics._metrics))
    metric("odd", "Odd", "odd", higher_is_better=True, needs="ranks")(lambda _: value)
    with pytest.raises(UserError, match=rf"metric 'odd' returned {found}; return a tensor with one value per query"):
        evaluate(torch.eye(4), [0, 0, 1, 1], clustering=None)


def test_unknown_needs_are_refused() -> None:
    with pytest.raises(UserError, match="needs 'rank' is unknown; did you mean 'ranks'"):
        metric("x", "X", "x", higher_is_better=True, needs="rank")


def test_every_score_has_a_title_a_meaning_and_a_direction() -> None:
    scores = evaluate(torch.eye(6), [0, 0, 1, 1, 2, 2], protocol="random-gallery").scores
    for name in scores:
        found = describe(name)
        assert found.name == name and found.title and found.meaning, name
    assert describe("recall@1").higher_is_better and describe("nearest_cluster_error").higher_is_better is False
    assert describe("queries").higher_is_better is None


@pytest.mark.parametrize(
    ("score", "title", "arrow"),
    [
        ("recall@1000", "Recall@1000", "↑"),
        ("with_sc_recall@2", "Recall@2, with SC", "↑"),
        ("random_gallery_map", "mAP, random galleries", "↑"),
        ("random_gallery_recall@1_sd", "Recall@1, ±, random galleries", ""),
        ("soft_knn_error", "Soft kNN error", "↓"),
        ("classifier_error", "Classifier error", "↓"),
        ("of_another_module", "Of another module", ""),
    ],
)
def test_names_are_parsed_into_their_parts(score: str, title: str, arrow: str) -> None:
    assert (score_name(score), describe(score).arrow) == (title, arrow)


def test_counts_are_whole_numbers() -> None:
    assert score_text("queries_without_positives", 123_456.0) == "123,456"
    assert score_text("ari", -0.25) == "-0.2500"


def test_the_docs_list_every_metric() -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "measure.md").read_text(encoding="utf-8")
    declared = [each for needs in metrics.NEEDS for each in known_metrics(needs)]
    rows = [_row(each.title, each.name, each.arrow, each.meaning) for each in declared]
    rows += [_row(f"…, {title}", f"{prefix}…", "", text) for prefix, (title, text) in metrics.known_variants().items()]
    table = "\n".join(rows)
    assert table in page, f"docs/howto/measure.md should hold:\n{table}"


def _row(title: str, name: str, arrow: str, meaning: str) -> str:
    title, name, meaning = (text.replace("{k}", "K") for text in (title, name, meaning))
    return f"| {title} {arrow}".rstrip() + f" | `{name}` | {meaning} |"
