"""`nearkin report`: a run as one page that needs nothing else, and its figures as files for papers."""

from __future__ import annotations

from pathlib import Path

from nearkin.files import write_text
from nearkin.progress import track
from nearkin.report.neighbours import neighbours_figure
from nearkin.report.run_classes import random_queries, worst_queries
from nearkin.report.run_facts import RunFacts, gather
from nearkin.report.run_groups import find_grouping
from nearkin.report.run_map import lay_out
from nearkin.report.run_page import run_page
from nearkin.report.run_plots import distances_figure, learning_figures, map_figure, save_figure, spectrum_figure
from nearkin.training.model_selection import PRIMARY

SHOWN_QUERIES = 12


def write_report(run: str | Path, out: str | Path | None = None, part: str = "test", figures: bool = True) -> Path:
    """Writes ``report.html`` into the run's folder, or to ``out``; returns where.

    Args:
        run: the run's folder.
        part: which part of its data to look at: test, validation or train.
        figures: whether the pictures are also written to the run's ``figures/``, as PNG and SVG.

    >>> write_report("runs/demo")  # doctest: +SKIP
    PosixPath('runs/demo/report.html')
    """
    return write_gathered(gather(run, part), out, figures)


def write_gathered(facts: RunFacts, out: str | Path | None = None, figures: bool = True) -> Path:
    """The same, from what was gathered already."""
    looked = facts.looked
    curves = learning_figures(facts.records, _kept_epoch(facts))
    spread, shown, random, worst = {}, None, [], []
    if looked is not None:
        spread = {"distances": distances_figure(looked.spread), "spectrum": spectrum_figure(looked.spread)}
        shown = lay_out(looked.space)
        if looked.evaluation is not None:
            random = random_queries(looked.evaluation, SHOWN_QUERIES).tolist()
            worst = worst_queries(looked.space, looked.evaluation, SHOWN_QUERIES).tolist()
    target = Path(out) if out else facts.run.folder / "report.html"
    write_text(target, run_page(facts, curves, spread, shown, random, worst, find_grouping(facts)))
    if figures:
        folder = facts.run.folder / "figures"
        drawn = curves | spread | ({"map": map_figure(shown.places, shown.colours)} if shown else {})
        if looked is not None and looked.evaluation is not None:
            chosen = [*random, *worst]
            drawn["neighbours"] = neighbours_figure(looked.dataset, looked.space, looked.evaluation, chosen)
        for name, figure in track(drawn.items(), "saving figures", len(drawn)):
            save_figure(figure, folder / name)
    return target


def _kept_epoch(facts: RunFacts) -> int | None:
    """The epoch whose model was kept, where it was chosen by scores on the way; 0: the start."""
    keep = facts.settings.training.keep
    kinds = ("before", "evaluation") if keep == "best-on-validation" else ("evaluation",)
    part = "test" if keep == "best-on-test" else "validation"
    measured = [record for record in facts.records if record["kind"] in kinds and record["part"] == part]
    if keep == "last" or not measured:
        return None
    return int(max(measured, key=lambda record: record[PRIMARY])["epoch"])  # the first of equals, as training chooses
