"""Rows that benchmarks add to a published comparison: only alike ones, each once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Added = Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Added:
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    from publish import added  # type: ignore[import-not-found]

    return added  # type: ignore[no-any-return]


def comparison(commit: str, scores: dict[str, float], **others: Any) -> dict[str, Any]:
    return {
        "protocol": "fair",
        "trials": 0,
        "scores": {name: {"map@r": [score, score]} for name, score in scores.items()},
        "refused": {},
        "read_outs": {f"{name}, with SC": {"map@r": [score, score]} for name, score in scores.items()},
        "backbone": {"recall@1": 0.544, "map@r": 0.154},
        "tried": {name: [{"scores": [score]}] for name, score in scores.items()},
        "made": {"commit": commit, "date": "2026-11-19", "hardware": f"{commit} machine, 2 cores"},
        "command": f"compare {' '.join(scores)} --set dim=64 --set weights=/{commit}",
    } | others


def test_rows_are_added_and_replaced_and_sorted(added: Added) -> None:
    before = comparison("a1", {"rank": 0.3, "margin": 0.2}, refused={"spectral": "too few classes"})
    found = comparison("b2", {"margin": 0.4, "spectral": 0.1})
    joined = added(before, found)
    assert {name: scores["map@r"][0] for name, scores in joined["scores"].items()} == {
        "margin": 0.4,
        "rank": 0.3,
        "spectral": 0.1,
    }
    assert list(joined["scores"]) == ["margin", "rank", "spectral"] and joined["refused"] == {}
    assert {name: scores["map@r"][0] for name, scores in joined["read_outs"].items()} == {
        "margin, with SC": 0.4,
        "rank, with SC": 0.3,
        "spectral, with SC": 0.1,
    }
    assert {name: of["scores"] for name, (of,) in joined["tried"].items()} == {
        "rank": [0.3],
        "margin": [0.4],
        "spectral": [0.1],
    }
    assert joined["made"] == {
        "commit": "a1; b2",
        "date": "2026-11-19",
        "hardware": "a1 machine, 2 cores; b2 machine, 2 cores",
    }
    assert joined["command"] == f"{before['command']}; {found['command']}"
    assert added(joined, found) == joined
    del found["tried"]
    assert added(before, found)["tried"] == {"rank": before["tried"]["rank"]}
    left_out = added(before, comparison("b2", {"npairs": 0.1}, refused={"rank": "the loss became nan"}))
    assert set(left_out["scores"]) == {"margin", "npairs"} and set(left_out["refused"]) == {"rank", "spectral"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backbone": {"recall@1": 0.42, "map@r": 0.06}}, "scores of the backbone alone differ"),
        ({"protocol": "paper"}, "differ in protocol: fair and paper"),
        ({"trials": 15}, "differ in trials: 0 and 15"),
        ({"command": "compare rank --set dim=512 --set weights=/b2"}, "differ in settings: .*64.* and .*512"),
        ({"scores": {"margin": {"map@r": [0.4]}}}, "differ in seeds"),
    ],
)
def test_rows_of_another_comparison_are_refused(added: Added, change: dict[str, Any], message: str) -> None:
    before = comparison("a1", {"rank": 0.3})
    with pytest.raises(SystemExit, match=message):
        added(before, before | change)
