"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from nearkin.models.card import score_text
from nearkin.report.names import score_name

if TYPE_CHECKING:
    from nearkin.training import Run


def print_columns(
    columns: Mapping[str, Mapping[str, float | tuple[float, float]]],
    title: str | None = None,
    sampled: Collection[str] = (),
) -> None:
    """Scores side by side, one column each; an interval is a pair of numbers, and what is of a sample says so."""
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right")
    for score in dict.fromkeys(score for scores in columns.values() for score in scores):
        if score == "queries_without_positives" and not any(scores.get(score) for scores in columns.values()):
            continue
        values = [_text(score, scores[score]) if score in scores else "" for scores in columns.values()]
        table.add_row(score_name(score) + (", sampled" if score in sampled else ""), *values)
    Console().print(table)


def print_scores(run: Run) -> None:
    """What a run has reached beside its backbone alone and its start, what that is worth, and where the run is."""
    scores = run.read_scores()
    if scores["after"]:
        columns = {
            "backbone alone": scores["backbone"],
            "before training": scores["before"],
            "after training": scores["after"],
        }
        print_columns({name: column for name, column in columns.items() if column}, "test split")
    lines = f"{scores['verdict']}\nmodel: {scores['chosen']}\nrun: {run.folder}"
    Console().print(lines, highlight=False, soft_wrap=True)


def _text(score: str, value: float | tuple[float, float]) -> str:
    return " – ".join(score_text(score, each) for each in (value if isinstance(value, tuple) else (value,)))
