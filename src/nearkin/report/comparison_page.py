"""A comparison as one HTML page that needs nothing but itself: table, pictures, settings, and how to repeat it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from nearkin.compare.result import HEADINGS, IN_WORDS, Comparison, in_words
from nearkin.report.comparison_plots import curves_figure, mean_curves, scores_figure, svg
from nearkin.training import Run

WORDS = ' class="words"'
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933; background: #fff; max-width: 62rem; margin: 2rem auto;
  padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2.2rem }
.protocol { display: inline-block; padding: .3rem .8rem; border-radius: .4rem; background: #e3f2e6; color: #1b4d26 }
.protocol.paper { background: #fdecd8; color: #7a3e00; font-weight: 600 }
.wide { overflow-x: auto } svg { width: 100%; height: auto }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid #e4e7eb; white-space: nowrap }
th:first-child, td:first-child { text-align: left } td.words { text-align: left; white-space: normal }
th { font-weight: 600; color: #52606d } .legend, footer { color: #616e7c; font-size: .9rem }
pre { background: #f5f7fa; padding: .7rem 1rem; border-radius: .4rem; white-space: pre-wrap; overflow-wrap: anywhere }
"""


def comparison_page(comparison: Comparison, out: Path, command: str) -> str:
    """The page of a comparison whose runs lie in ``out``; names and reasons are escaped."""
    part = "the test part" if comparison.protocol == "paper" else "validation classes"
    curves = mean_curves(comparison)
    settings = {name: Run(out / f"{name}-0").settings().to_tables() for name in comparison.scores}
    shared, own = _shared_and_own({name: _flat(tables) for name, tables in settings.items()})
    sections = [
        _table(HEADINGS, comparison.rows()),
        f'<p class="legend">{escape(comparison.legend)}</p>',
        "<h2>Scores and their intervals</h2>",
        svg(scores_figure(comparison)),
        *(["<h2>Learning curves</h2>", svg(curves_figure(comparison, curves, part))] if curves else []),
        "<h2>Settings</h2>",
        _table(
            ("method", "settings of its own", "seconds a run"),
            [[name, in_words(values), _seconds(comparison, name)] for name, values in own.items()],
            words=(1,),
        ),
        f'<p class="legend">The same for all: {escape(in_words(shared))}.</p>',
        *_refused(comparison),
        f"<h2>To repeat it</h2><pre>{escape(command)}</pre>",
        f"<footer>{escape(' · '.join(f'{name} {value}' for name, value in comparison.made.items()))}</footer>",
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Methods compared</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body><h1>{len(comparison.scores)} methods compared</h1>"
        f'<p class="protocol {comparison.protocol}">{escape(IN_WORDS[comparison.protocol])}</p>'
        + "\n".join(sections)
        + "</body></html>\n"
    )


def _flat(tables: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {name: value for table in tables.values() for name, value in table.items() if name not in ("name", "seed")}


def _shared_and_own(settings: dict[str, dict[str, Any]]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """What all methods have alike, and what each has beside it; empty texts say nothing and are left out."""
    first = next(iter(settings.values()))
    alike = {
        name: value
        for name, value in first.items()
        if all(name in values and values[name] == value for values in settings.values())
    }
    own = {method: {k: v for k, v in values.items() if k not in alike} for method, values in settings.items()}
    return {name: value for name, value in alike.items() if value != ""}, own


def _seconds(comparison: Comparison, method: str) -> str:
    return f"{np.mean(comparison.seconds[method]):,.0f}" if method in comparison.seconds else ""


def _refused(comparison: Comparison) -> list[str]:
    if not comparison.refused:
        return []
    return ["<h2>Left out</h2>", _table(("method", "why"), [list(pair) for pair in comparison.refused.items()], (1,))]


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], words: Sequence[int] = ()) -> str:
    def cell(number: int, text: str) -> str:
        return f"<td{WORDS if number in words else ''}>{escape(text)}</td>"

    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join("<tr>" + "".join(cell(n, text) for n, text in enumerate(row)) + "</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'
