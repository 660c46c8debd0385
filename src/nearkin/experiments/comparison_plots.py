"""The two figures of a comparison: scores with intervals, and learning curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nearkin.experiments.comparison_result import ComparisonResult, half_interval
from nearkin.reports.figures import COLOURS, FAINT, INK, SOFT, plain_axes, plain_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLES = ("-", "--", ":")  # of lines; the next one is used when the colours are used up
Curve = tuple[Sequence[int], Sequence[float]]  # epochs, mean score


def scores_figure(comparison: ComparisonResult) -> Figure:
    """A dot per method with the 95 % interval of its mean, the best on top.

    Rings are concatenated models and the backbone alone.
    """
    scores = comparison.all_scores()
    figure = plain_figure(10, 1.2 + 0.34 * len(scores))
    colours = colours_of(comparison)
    for place, (score, title) in enumerate((("map@r", "MAP@R"), ("recall@1", "Recall@1"))):
        axes = figure.add_subplot(1, 2, place + 1)
        for row, (name, values) in enumerate(scores.items()):
            mean, half = float(np.mean(values[score])), half_interval(values[score])
            single = name not in comparison.scores
            # "rank, with SC" and "rank, 3 models" look like "rank"; "rank,alpha=2" is another method.
            colour = colours.get(name.partition(", ")[0], SOFT)
            axes.errorbar(mean, row, xerr=half or None, color=colour, capsize=3, linewidth=1.6)
            axes.plot(mean, row, "o", color=colour, markersize=7, markerfacecolor="white" if single else colour)
            axes.annotate(
                f"{mean:.3f}", (mean, row), (0, 6), textcoords="offset points", ha="center", fontsize=8, color=INK
            )
        axes.set_yticks(range(len(scores)), list(scores) if place == 0 else [""] * len(scores), parse_math=False)
        axes.set_ylim(len(scores) - 0.4, -0.75)
        low, high = axes.get_xlim()
        axes.set_xlim(max(low, -0.02), min(high, 1.02))  # intervals of a few seeds may reach below 0 or above 1
        plain_axes(axes, title)
    return figure


def curves_figure(comparison: ComparisonResult, curves: Mapping[str, Curve]) -> Figure:
    """MAP@R over epochs, one line per method; the legend is sorted by the last value."""
    from matplotlib.ticker import MaxNLocator

    figure = plain_figure(10, 4.4)
    axes = figure.add_subplot()
    colours = colours_of(comparison)
    styles = {name: STYLES[place // len(COLOURS) % len(STYLES)] for place, name in enumerate(colours)}
    for name, (epochs, values) in sorted(curves.items(), key=lambda item: -item[1][1][-1]):
        marker = "o" if len(epochs) < 3 else None
        axes.plot(epochs, values, styles[name], color=colours[name], linewidth=1.8, marker=marker, label=name)
    axes.set_xlabel("epoch", color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend = axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, labelcolor=INK)
    for text in legend.get_texts():
        text.set_parse_math(False)
    classes = "test" if comparison.protocol == "paper" else "validation"
    plain_axes(axes, f"MAP@R on {classes} classes, mean over seeds")
    axes.grid(axis="y", color=FAINT)
    return figure


def mean_curves(comparison: ComparisonResult) -> dict[str, Curve]:
    """The mean curve of each method, at the epochs where all its seeds were evaluated."""
    means: dict[str, Curve] = {}
    for name, seeds in comparison.curves.items():
        curves = [dict(curve) for curve in seeds]
        epochs = sorted(set.intersection(*(set(curve) for curve in curves)))
        if epochs:
            means[name] = (epochs, [float(np.mean([curve[epoch] for curve in curves])) for epoch in epochs])
    return means


def colours_of(comparison: ComparisonResult) -> dict[str, str]:
    return {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(comparison.scores)}
