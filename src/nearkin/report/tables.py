"""Tables for the terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from nearkin.compare.result import HEADINGS, Comparison, in_words
from nearkin.data.benchmarks import benchmarks, find
from nearkin.methods import known_methods, make_method
from nearkin.report.names import score_name
from nearkin.training import Run


def print_columns(columns: Mapping[str, Mapping[str, float | tuple[float, float]]], title: str | None = None) -> None:
    """Scores side by side, one column each; an interval is a pair of numbers."""
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right")
    for score in dict.fromkeys(score for scores in columns.values() for score in scores):
        if score == "queries_without_positives" and not any(scores.get(score) for scores in columns.values()):
            continue
        values = [_number(scores[score]) if score in scores else "" for scores in columns.values()]
        table.add_row(score_name(score), *values)
    Console().print(table)


def print_scores(run: Run) -> None:
    """What a run has reached, before beside after, and where it lies."""
    scores = json.loads(run.scores.read_text(encoding="utf-8"))
    if scores["after"]:
        columns = {"before training": scores["before"], "after training": scores["after"]}
        print_columns({name: column for name, column in columns.items() if column}, "test part")
    else:
        Console().print("there is no test part: nothing was measured")
    Console().print(f"model chosen by: {scores['chosen']}\nrun: {run.folder}", highlight=False)


def print_comparison(comparison: Comparison) -> None:
    """One row for each method, the best first."""
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


def print_methods() -> None:
    table = Table(show_lines=True)
    table.add_column("method", no_wrap=True)
    table.add_column("what it does", overflow="fold")
    table.add_column("settings", no_wrap=True)
    for known in known_methods():
        method = make_method(known.name)
        lines = {
            "paper": method.paper,
            "batches": method.batches,
            "minimises": method.minimises,
            "looks at the whole space": method.refresh or "no",
            "at test time": method.readout,
        }
        about = "\n".join(f"[dim]{name}:[/dim] {value}" for name, value in lines.items())
        settings = "\n".join(f"{name}={value}" for name, value in method.settings().items())
        table.add_row(method.name, about, settings)
    Console().print(table)


def _number(value: float | tuple[float, float]) -> str:
    if isinstance(value, tuple):
        return f"{value[0]:.4f} – {value[1]:.4f}"
    return f"{value:.4f}" if isinstance(value, float) and not value.is_integer() else f"{value:,.0f}"


def print_datasets(root: Path | None) -> None:
    table = Table(show_lines=True)
    for heading in ("dataset", "classes", "images", "what it is, where to get it", "found"):
        table.add_column(heading, overflow="fold")
    table.add_row(
        "glyphs",
        "400",
        "5,200 train\n5,200 test",
        "characters in 16 typefaces, drawn on first use",
        "built in",
    )
    for benchmark in benchmarks():
        folder = find(benchmark.name, root)
        counts = "\n".join(f"{count:,} {part}" for part, count in benchmark.counts.items())
        about = f"{benchmark.description}\n{benchmark.source}\n{benchmark.layout}"
        table.add_row(benchmark.name, f"{benchmark.classes:,}", counts, about, str(folder) if folder else "no")
    Console().print(table)
