"""Tables for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from nearkin.evaluation.result import score_table

if TYPE_CHECKING:
    from nearkin.training import Run


def print_scores(run: Run) -> None:
    """What a run has reached beside its backbone alone and its start, what that is worth, and where the run is."""
    scores = run.scores
    if scores["after"]:
        columns = {
            "backbone alone": scores["backbone"],
            "before training": scores["before"],
            "after training": scores["after"],
        }
        Console().print(score_table({name: column for name, column in columns.items() if column}, "test split"))
    lines = f"model: {scores['chosen']}\nrun: {run.folder}"
    Console().print(lines, highlight=False, soft_wrap=True)
