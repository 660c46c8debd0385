"""Writes the report of a run: a self-contained HTML page, and its figures as files for papers."""

from __future__ import annotations

from pathlib import Path

from nearkin.files import write_text
from nearkin.progress import track
from nearkin.reports.figures import save_figure
from nearkin.reports.map import lay_out
from nearkin.reports.neighbours import neighbours_figure
from nearkin.reports.run_page import RunReport, run_page
from nearkin.reports.run_plots import distances_figure, learning_figures, map_figure, spectrum_figure
from nearkin.reports.split import random_queries, worst_queries

SHOWN_QUERIES = 12


def write_run_report(report: RunReport, target: Path, figures: Path | None = None) -> None:
    """Writes the page to ``target``, and its figures as PNG and SVG to the folder ``figures`` if given."""
    split = report.split
    curves = learning_figures(report.records, report.kept_epoch)
    spread, shown, random, worst = {}, None, [], []
    if split is not None:
        spread = {"distances": distances_figure(split.diagnostics), "spectrum": spectrum_figure(split.diagnostics)}
        shown = lay_out(split.space)
        if split.result is not None:
            random = random_queries(split.result, SHOWN_QUERIES).tolist()
            worst = worst_queries(split.space, split.result, SHOWN_QUERIES).tolist()
    write_text(target, run_page(report, curves, spread, shown, random, worst))
    if figures is None:
        return
    drawn = curves | spread | ({"map": map_figure(shown.points, shown.colours)} if shown else {})
    if split is not None and split.result is not None:
        drawn["neighbours"] = neighbours_figure(split, [*random, *worst])
    for name, figure in track(drawn.items(), "saving figures", len(drawn)):
        save_figure(figure, figures / name)
