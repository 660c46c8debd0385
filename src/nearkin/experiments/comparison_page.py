"""A comparison as a self-contained HTML page: table, figures, settings, and the command to repeat it."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from nearkin.data.summary import counted
from nearkin.experiments.comparison_plots import curves_figure, mean_curves, scores_figure
from nearkin.experiments.comparison_result import HEADINGS, IN_WORDS, ComparisonResult, in_words
from nearkin.reports.page import drawing, page, table
from nearkin.training import Run


def comparison_page(comparison: ComparisonResult, out: Path) -> str:
    """The page of a comparison whose runs are in ``out``; names and reasons are escaped."""
    curves = mean_curves(comparison)
    settings = {name: Run(out / f"{name}-0").settings().to_tables() for name in comparison.scores}
    shared, own = _shared_and_own({name: _flat(tables) for name, tables in settings.items()})
    sections = [
        table(HEADINGS, comparison.rows()),
        f'<p class="legend">{escape(comparison.notes)}</p>',
        "<h2>Scores with 95 % intervals</h2>",
        drawing(scores_figure(comparison), "Scores with 95 % intervals"),
        *(
            ["<h2>Learning curves</h2>", drawing(curves_figure(comparison, curves), "Learning curves")]
            if curves
            else []
        ),
        "<h2>Settings</h2>",
        table(
            ("method", "own settings", "seconds per run"),
            [[name, in_words(values), _seconds(comparison, name)] for name, values in own.items()],
            words=(1,),
        ),
        f'<p class="legend">Shared by all methods: {escape(in_words(shared))}.</p>',
        *_refused(comparison),
        f"<h2>How to repeat this</h2><pre>{escape(comparison.command)}</pre>",
        f"<footer>{escape(' · '.join(f'{name} {value}' for name, value in comparison.made.items()))}</footer>",
    ]
    head = (
        f"<h1>Comparison of {counted(len(comparison.scores), 'method')}</h1>"
        f'<p class="protocol {comparison.protocol}">{escape(IN_WORDS[comparison.protocol])}</p>'
    )
    return page("Comparison of methods", head + "\n".join(sections))


def _flat(tables: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {name: value for table in tables.values() for name, value in table.items() if name not in ("name", "seed")}


def _shared_and_own(settings: dict[str, dict[str, Any]]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The settings that all methods share, without empty ones, and the others by method."""
    first = next(iter(settings.values()))
    alike = {
        name: value
        for name, value in first.items()
        if all(name in values and values[name] == value for values in settings.values())
    }
    own = {method: {k: v for k, v in values.items() if k not in alike} for method, values in settings.items()}
    return {name: value for name, value in alike.items() if value != ""}, own


def _seconds(comparison: ComparisonResult, method: str) -> str:
    return f"{np.mean(comparison.seconds[method]):,.0f}" if method in comparison.seconds else ""


def _refused(comparison: ComparisonResult) -> list[str]:
    if not comparison.refused:
        return []
    return ["<h2>Left out</h2>", table(("method", "reason"), [list(pair) for pair in comparison.refused.items()], (1,))]
