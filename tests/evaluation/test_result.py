"""Evaluation results can be printed, saved and converted."""

from __future__ import annotations

import builtins
import json
import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from nearkin.errors import UserError
from nearkin.evaluation import EvaluationResult, confidence_intervals, diagnostics, evaluate
from nearkin.evaluation.result import score_table
from nearkin.space import Space


@pytest.fixture
def result() -> EvaluationResult:
    generator = torch.Generator().manual_seed(0)
    space = Space.of(torch.randn(60, 3, generator=generator), torch.arange(60) % 5)
    found, spread = evaluate(space), diagnostics(space, pairs=50)
    return replace(
        found,
        scores=found.scores | spread.scores,
        intervals=confidence_intervals(found, space),
        backbone={"recall@1": 0.125},
        attributes={"1": {"[red]": 0.5}, "chance": {"[red]": 0.25}},
        diagnostics=spread,
        split="validation",
    )


def test_it_prints_as_a_table(result: EvaluationResult) -> None:
    lines = str(result).splitlines()
    cells = {row[0].strip(): row[1:] for row in (line.strip("│").split("│") for line in lines) if len(row) == 4}
    low, high = result.intervals["recall@1"]
    expected = ["0.1250", f"{result.scores['recall@1']:.4f}", f"{low:.4f} – {high:.4f}"]
    assert [cell.strip() for cell in cells["Recall@1 ↑"]] == expected
    assert [cell.strip() for cell in cells["Queries"]] == ["", "60", ""]
    assert "Distance ratio ↓, sampled" in cells and "Queries without a positive" not in cells
    assert "validation" in lines[1] and "backbone alone" in lines[1]
    assert any(line.split() == ["[red]", "0.500", "0.250"] for line in lines)


def test_a_notebook_shows_the_same_cells(result: EvaluationResult) -> None:
    html = result._repr_html_()
    assert re.findall(r"<th>(.*?)</th>", html) == ["", "backbone alone", "validation", "95 % interval"]
    assert f"<tr><td>Recall@1 ↑</td><td>0.1250</td><td>{result.scores['recall@1']:.4f}</td>" in html


def test_it_converts_to_plain_numbers_for_a_file(result: EvaluationResult) -> None:
    found = json.loads(json.dumps(result.to_dict()))
    assert list(found) == ["validation", "intervals", "attributes", "distances", "backbone"]
    assert found["validation"] == result.scores and found["intervals"]["map"] == list(result.intervals["map"])
    alone = evaluate(torch.eye(4), [0, 0, 1, 1], clustering=None)
    assert alone.to_dict() == {"scores": alone.scores, "intervals": {}}


def test_a_data_frame_has_a_row_for_every_score(result: EvaluationResult) -> None:
    pytest.importorskip("pandas")
    frame = result.to_pandas()
    assert list(frame.index) == list(result.scores) and list(frame.columns) == [
        *("title", "value", "low", "high", "backbone")
    ]
    assert frame.loc["map@r", "value"] == result.scores["map@r"] and frame.loc["recall@1", "backbone"] == 0.125
    assert (frame.loc["map", "low"], frame.loc["map", "high"]) == result.intervals["map"]


def test_without_pandas_it_says_how_to_get_it(result: EvaluationResult, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = builtins.__import__

    def without(name: str, *arguments: Any, **named: Any) -> Any:
        if name == "pandas":
            raise ImportError(name)
        return whole(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match="to_pandas needs pandas; run `pip install pandas`"):
        result.to_pandas()


def test_names_that_look_like_markup_are_shown_as_they_are() -> None:
    from rich.console import Console

    console = Console(width=80)
    with console.capture() as captured:
        console.print(score_table({"[bold]": {"recall@1": 0.5}}))
    assert "[bold]" in captured.get()
