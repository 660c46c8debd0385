"""Tables for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from nearkin.evaluation.result import score_table

if TYPE_CHECKING:
    from nearkin.compare import Comparison
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


def print_comparison(comparison: Comparison) -> None:
    """One row for each method, the best first."""
    from nearkin.compare.result import HEADINGS, in_words

    table = Table(title=comparison.legend, title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for row in comparison.rows():
        table.add_row(*row)
    Console().print(table)
    for method, chosen in comparison.chosen.items():
        Console().print(f"{method}: {in_words(chosen)}", highlight=False)
    for method, reason in comparison.refused.items():
        Console().print(f"{method} was left out: {reason}", highlight=False)
