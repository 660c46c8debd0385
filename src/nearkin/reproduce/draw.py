"""The papers' figures, drawn again from the runs made here; the picture says on which data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from nearkin.evaluation import score_name
from nearkin.files import atomic_path
from nearkin.report.figures import plain_figure
from nearkin.reproduce.curves import Curve, curve, steps_to_reach
from nearkin.reproduce.measure import space_of_test_part
from nearkin.reproduce.result import Outcome, Reproduction, heading
from nearkin.training import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Numbers = dict[str, Any]
PER_PANEL = 4.2  # inches


def draw(found: Reproduction, file: Path, runs: Path) -> Numbers:
    """Draws a figure as its part says, and gives the numbers that are drawn, shares and steps.

    Args:
        found: the rows of the figure; those without scores are left out.
        file: the PNG to write.
        runs: the folder that holds the runs.
    """
    done = [outcome for outcome in found.outcomes if outcome.scores]
    figure, numbers = KINDS[found.part.draw](found, done, runs)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    data = ", ".join(dict.fromkeys(outcome.plan.data for outcome in done))
    title = f"{found.part.paper.partition(':')[0]}, {found.part.number}, trained again here; {data}"
    figure.suptitle(fill(title, round(15 * figure.get_figwidth())), fontsize=9)
    with atomic_path(file) as partial:
        figure.savefig(partial, dpi=150)
    return numbers


def _sweep(found: Reproduction, done: Sequence[Outcome], _: Path) -> tuple[Figure, Numbers]:
    """Every score over the setting in which the runs differ."""
    figure, (axes,) = _panels(1, 6.4)
    values = [outcome.plan.row.set[found.part.swept] for outcome in done]
    drawn = {column: [outcome.scores[column] for outcome in done] for column in found.part.columns}
    for column, scores in drawn.items():
        axes.plot(values, scores, marker="o", markersize=4, label=score_name(column), linestyle=_style(column))
    _label(axes, "α" if found.part.swept == "alpha" else found.part.swept, "score on the test part")
    return figure, {found.part.swept: values, **drawn}


def _learners(found: Reproduction, done: Sequence[Outcome], runs: Path) -> tuple[Figure, Numbers]:
    """The first score while training, and that of the kept models over the number of learners."""
    figure, (left, right) = _panels(2)
    column = found.part.columns[0]
    curves = {outcome.plan.row.method: curve(Run(runs / outcome.folder), column) for outcome in done}
    for label, points in curves.items():
        left.plot(*zip(*points, strict=True), label=label, linewidth=1.4)
    _label(left, "iterations", f"{heading(column)} on the test part")
    values = [outcome.plan.row.set[found.part.swept] for outcome in done]
    best = [outcome.scores[column] for outcome in done]
    right.plot(values, best, marker="o", color="0.3")
    right.set_xscale("log", base=2)
    right.set_xticks(values, [str(value) for value in values])
    right.minorticks_off()
    _label(right, "learners K", f"{heading(column)} of the kept model", legend=False)
    return figure, {"curves": curves, found.part.swept: values, column: best}


def _errors(found: Reproduction, done: Sequence[Outcome], runs: Path) -> tuple[Figure, Numbers]:
    """One panel for each dataset; diamonds where a curve reaches the last error of the panel's first one."""
    names = list(dict.fromkeys(outcome.plan.row.panel for outcome in done))
    figure, panels = _panels(len(names), PER_PANEL if len(names) > 1 else 6.4)
    numbers: Numbers = {}
    for name, axes in zip(names, panels, strict=True):
        own = [outcome for outcome in done if outcome.plan.row.panel == name]
        title = f"{own[0].plan.other_data} for {name}" if own[0].plan.other_data else name
        curves: dict[str, Curve] = {}
        for outcome in own:
            column = outcome.plan.row.columns[0]
            label = f"{outcome.plan.row.method} ({heading(column).removesuffix(' error')})"
            curves[label] = curve(Run(runs / outcome.folder), column)
        for label, points in curves.items():
            axes.plot(*zip(*points, strict=True), label=label, linewidth=1.4)
        goal: float | None = None
        reached: dict[str, int | None] = dict.fromkeys(curves)
        first = next(outcome for outcome in found.outcomes if outcome.plan.row.panel == name)
        if first.scores:
            goal = next(iter(curves.values()))[-1][1]
            reached = {label: steps_to_reach(points, goal) for label, points in curves.items()}
            axes.axhline(goal, color="0.8", linewidth=0.8, zorder=0)
            places = [(step, dict(curves[label])[step]) for label, step in reached.items() if step]
            marked = f"last error of {first.plan.row.method} reached"
            if places:
                axes.plot(*zip(*places, strict=True), "D", color="tab:red", markersize=6, label=marked)
        axes.set_ylim(bottom=0)
        axes.set_title(title, fontsize=9)
        _label(axes, "iterations", "error on new examples")
        numbers[title] = {"curves": curves, "goal": goal, "reached": reached}
    return figure, numbers


def _plane(_: Reproduction, done: Sequence[Outcome], runs: Path) -> tuple[Figure, Numbers]:
    """The test part of every run where its two numbers put it, a colour for each class."""
    from matplotlib import colormaps

    figure, panels = _panels(len(done), 3.0)
    numbers: Numbers = {}
    for outcome, axes in zip(done, panels, strict=True):
        dataset, space, _known = space_of_test_part(Run(runs / outcome.folder))
        places = space.embeddings.cpu().numpy()
        for place, label in enumerate(dataset.present_classes):
            own = places[dataset.labels == label]
            colour = colormaps["tab10"](place % 10)
            axes.scatter(own[:, 0], own[:, 1], s=4, color=colour, linewidths=0, alpha=0.7)
        axes.set(
            xticks=[], yticks=[], aspect="equal", xlabel="first number", ylabel="second number", adjustable="datalim"
        )
        axes.set_title(f"{outcome.plan.row.method}\nmAP {outcome.scores['map']:.3f}", fontsize=9)
        numbers[outcome.plan.row.method] = {
            "places": np.round(places.astype(float), 4).tolist(),
            "classes": [dataset.classes[label] for label in dataset.labels],
        }
    return figure, numbers


KINDS: dict[str, Callable[[Reproduction, Sequence[Outcome], Path], tuple[Figure, Numbers]]] = {
    "sweep": _sweep,
    "learners": _learners,
    "errors": _errors,
    "plane": _plane,
}


def _panels(number: int, width: float = PER_PANEL) -> tuple[Figure, list[Any]]:
    figure = plain_figure(width * number, 3.8)
    return figure, list(figure.subplots(1, number, squeeze=False)[0])


def _label(axes: Any, x: str, y: str, legend: bool = True) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if legend:
        axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)


def _style(column: str) -> str:
    return "--" if column.startswith("nmi") else "-"
