"""Reproduces figures of the papers from runs: the numbers of every panel, and the plot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import fill

from nearkin.evaluation import score_name
from nearkin.experiments.reproduction_result import ReproductionResult, heading
from nearkin.files import atomic_path
from nearkin.models import Embedder, embed_dataset
from nearkin.reports.figures import plain_axes, plain_figure
from nearkin.training import Run
from nearkin.training.prepare import load_splits

Places = Sequence[tuple[float, float]]  # (x, y)
LINES, POINTS, DIAMONDS = ".-", ".", "D"  # matplotlib formats


@dataclass(frozen=True)
class Panel:
    """One panel of a figure."""

    title: str
    x: str  # label of the axis
    y: str
    series: Mapping[str, Places]
    style: str = LINES
    marks: Mapping[str, Places] = field(default_factory=dict)


def make_panels(result: ReproductionResult) -> list[Panel]:
    """The panels that the table's ``draw`` names, without rows that have no scores."""
    return KINDS[result.table.draw](result)


def draw(result: ReproductionResult, panels: Sequence[Panel], file: Path) -> None:
    """Writes a figure as PNG; the title names the data."""
    figure = plain_figure(max(6.4, 3.6 * len(panels)), 3.8)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for name, places in panel.series.items():
            axes.plot(*zip(*places, strict=True), panel.style, label=name, markersize=4)
        for name, places in panel.marks.items():
            axes.plot(*zip(*places, strict=True), DIAMONDS, label=name, color="tab:red")
        if panel.style == POINTS:
            axes.set(xticks=[], yticks=[], aspect="equal", adjustable="datalim")
        else:
            axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
        axes.set(xlabel=panel.x, ylabel=panel.y)
        plain_axes(axes, panel.title)
    data = ", ".join(dict.fromkeys(row.other_data or row.dataset for row in result.rows if row.here))
    title = f"{result.table.title.partition(':')[0]}, {result.table.number}, trained again here on {data}"
    figure.suptitle(fill(title, round(15 * figure.get_figwidth())), fontsize=9)
    with atomic_path(file) as partial:
        figure.savefig(partial, dpi=150)


def curve(run: Run, score: str) -> list[tuple[int, float]]:
    """(step, score) at the start and after every epoch with an evaluation."""
    return [(record["step"], record[score]) for record in run.metrics if record["kind"] != "final" and score in record]


def steps_to_reach(curve: Places, error: float) -> float | None:
    """The first step after the start where the curve is at or below the error; None if there is none.

    >>> steps_to_reach([(0, 0.1), (10, 0.5), (20, 0.2)], 0.3)
    20
    """
    return next((step for step, value in curve if step and value <= error), None)


def _sweep(result: ReproductionResult) -> list[Panel]:
    """Every score over the one setting that differs between the runs."""
    swept = next(iter(result.table.rows[0].set))
    both = zip(result.table.rows, result.rows, strict=True)
    done = [(row.set[swept], outcome.here) for row, outcome in both if outcome.here]
    lines = {score_name(score): [(value, here[score] / 100) for value, here in done] for score in result.table.columns}
    return [Panel("", swept, "score on the test split", lines)] if done else []


def _curves(result: ReproductionResult) -> list[Panel]:
    """The first score of every run during training; one panel per dataset."""
    lines: dict[str, dict[str, Places]] = {}
    for row in result.rows:
        score = next(iter(row.paper))
        if row.here and (points := curve(Run(result.folder / row.run), score)):
            lines.setdefault(row.dataset, {})[f"{row.method}, {heading(score)}"] = points
    return [Panel(dataset, "iterations", "score on the test split", each) for dataset, each in lines.items()]


def _errors(result: ReproductionResult) -> list[Panel]:
    """Curves, with a mark where each reaches the last error of the panel's first curve."""
    panels = []
    for panel in _curves(result):
        first, last_error = next((name, points[-1][1]) for name, points in panel.series.items())
        steps = [(steps_to_reach(points, last_error), dict(points)) for points in panel.series.values()]
        marks = [(step, points[step]) for step, points in steps if step]
        panels.append(replace(panel, marks={f"last error of {first} reached": marks} if marks else {}))
    return panels


def _planes(result: ReproductionResult) -> list[Panel]:
    """The 2-D embeddings of the test split, by class; one panel per run."""
    panels = []
    for row in result.rows:
        if row.here:
            run = Run(result.folder / row.run)
            test = load_splits(run.settings().data, run.settings().training.seed).test
            assert test is not None  # the row has scores
            places = embed_dataset(Embedder.load(run.folder).model, test).embeddings.cpu().numpy()
            points = {test.classes[label]: places[test.labels == label].tolist() for label in test.present_classes}
            title = f"{row.method}\nmAP {row.here['map'] / 100:.3f}"
            panels.append(Panel(title, "first dimension", "second dimension", points, POINTS))
    return panels


KINDS: dict[str, Callable[[ReproductionResult], list[Panel]]] = {
    "sweep": _sweep,
    "curves": _curves,
    "errors": _errors,
    "plane": _planes,
}
