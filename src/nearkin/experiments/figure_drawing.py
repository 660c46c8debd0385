"""The papers' figures, drawn again from numbers of the runs made here; the picture says on which data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from nearkin.evaluation import score_name
from nearkin.experiments.papers import PaperTable
from nearkin.experiments.reproduction_result import ReproductionResult, RowResult, heading
from nearkin.files import atomic_path
from nearkin.reports.figures import plain_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Numbers = dict[str, Any]
PER_PANEL = 4.2  # inches


def draw(result: ReproductionResult, numbers: Numbers, file: Path) -> None:
    """Writes a figure as PNG from what `numbers_of` gave."""
    figure = KINDS[result.table.draw](result.table, numbers)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    data = ", ".join(dict.fromkeys(_data(row) for row in result.rows if row.here))
    title = f"{result.table.title.partition(':')[0]}, {result.table.number}, trained again here; {data}"
    figure.suptitle(fill(title, round(15 * figure.get_figwidth())), fontsize=9)
    with atomic_path(file) as partial:
        figure.savefig(partial, dpi=150)


def _data(row: RowResult) -> str:
    return f"other data: {row.other_data}" if row.other_data else row.dataset


def _sweep(table: PaperTable, numbers: Numbers) -> Figure:
    """Every score over the setting in which the runs differ."""
    figure, (axes,) = _panels(1, 6.4)
    for column in table.columns:
        style = "--" if column.startswith("nmi") else "-"
        points = numbers[table.swept], numbers[column]
        axes.plot(*points, marker="o", markersize=4, label=score_name(column), linestyle=style)
    _label(axes, "α" if table.swept == "alpha" else table.swept, "score on the test split")
    return figure


def _learners(table: PaperTable, numbers: Numbers) -> Figure:
    """The first score while training, and that of the kept models over the number of learners."""
    figure, (left, right) = _panels(2)
    column, values = table.columns[0], numbers[table.swept]
    _curves(left, numbers["curves"])
    _label(left, "iterations", f"{heading(column)} on the test split")
    right.plot(values, numbers[column], marker="o", color="0.3")
    right.set_xscale("log", base=2)
    right.set_xticks(values, [str(value) for value in values])
    right.minorticks_off()
    _label(right, "learners K", f"{heading(column)} of the kept model", legend=False)
    return figure


def _errors(_: PaperTable, numbers: Numbers) -> Figure:
    """One panel for each dataset; diamonds where a curve reaches the last error of the panel's first one."""
    figure, panels = _panels(len(numbers), PER_PANEL if len(numbers) > 1 else 6.4)
    for (title, panel), axes in zip(numbers.items(), panels, strict=True):
        curves = panel["curves"]
        _curves(axes, curves)
        if panel["goal"] is not None:
            axes.axhline(panel["goal"], color="0.8", linewidth=0.8, zorder=0)
            places = [(step, dict(curves[label])[step]) for label, step in panel["reached"].items() if step]
            marked = f"last error of {next(iter(curves)).partition(' (')[0]} reached"
            if places:
                axes.plot(*zip(*places, strict=True), "D", color="tab:red", markersize=6, label=marked)
        axes.set_ylim(bottom=0)
        axes.set_title(title, fontsize=9)
        _label(axes, "iterations", "error on new examples")
    return figure


def _plane(_: PaperTable, numbers: Numbers) -> Figure:
    """The test split of every run where its two numbers put it, a colour for each class."""
    from matplotlib import colormaps

    figure, panels = _panels(len(numbers), 3.0)
    for (method, panel), axes in zip(numbers.items(), panels, strict=True):
        places, classes = np.array(panel["places"]), np.array(panel["classes"])
        for number, name in enumerate(dict.fromkeys(panel["classes"])):
            own = places[classes == name]
            colour = colormaps["tab10"](number % 10)
            axes.scatter(own[:, 0], own[:, 1], s=4, color=colour, linewidths=0, alpha=0.7)
        axes.set(
            xticks=[], yticks=[], aspect="equal", xlabel="first number", ylabel="second number", adjustable="datalim"
        )
        axes.set_title(f"{method}\nmAP {panel['map']:.3f}", fontsize=9)
    return figure


KINDS: dict[str, Callable[[PaperTable, Numbers], Figure]] = {
    "sweep": _sweep,
    "learners": _learners,
    "errors": _errors,
    "plane": _plane,
}


def _panels(number: int, width: float = PER_PANEL) -> tuple[Figure, list[Any]]:
    figure = plain_figure(width * number, 3.8)
    return figure, list(figure.subplots(1, number, squeeze=False)[0])


def _curves(axes: Any, curves: dict[str, list[tuple[int, float]]]) -> None:
    for label, points in curves.items():
        axes.plot(*zip(*points, strict=True), label=label, linewidth=1.4)


def _label(axes: Any, x: str, y: str, legend: bool = True) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if legend:
        axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
