"""The figures of a run's report, small enough to stand side by side: curves, distances, spectrum, the still map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from nearkin.evaluation import Diagnostics, score_name
from nearkin.reports.figures import COLOURS, FAINT, INK, SOFT, plain_axes, plain_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Record = dict[str, Any]
ON_THE_WAY = ("recall@1", "map@r")
SMALL = (4.2, 2.8)


def learning_figures(records: Sequence[Record], kept_epoch: int | None) -> dict[str, Figure]:
    """By file name: the loss, the scores that were measured on the way, and the learning rate, over epochs."""
    training = [record for record in records if record["kind"] == "training"]
    figures = {}
    for name, field, title in (("loss", "loss", "Loss"), ("learning-rate", "learning_rate", "Learning rate")):
        if training:
            figure, axes = _over_epochs(title)
            _line(axes, training, field, COLOURS[0])
            figures[name] = figure
    measured = [record for record in records if record["kind"] == "evaluation"]
    if measured:
        split = measured[-1]["split"]
        start = [record for record in records if record["kind"] == "before" and record["split"] == split]
        figure, axes = _over_epochs(f"Scores on the {split} split")
        for colour, score in zip(COLOURS, ON_THE_WAY, strict=False):
            _line(axes, start + measured, score, colour, score_name(score))
        if kept_epoch is not None:
            axes.axvline(kept_epoch, color=SOFT, linestyle=":", label=f"kept: epoch {kept_epoch}")
        axes.legend(frameon=False, labelcolor=INK, fontsize=9)
        figures["scores"] = figure
    return {name: figures[name] for name in ("loss", "scores", "learning-rate") if name in figures}


def distances_figure(found: Diagnostics) -> Figure:
    """How far apart items of one class and of two are, as shares of the pairs of each kind."""
    figure, axes = _small("Distances between pairs of items")
    edges = found.edges.numpy()
    for kind, name, colour in (
        (found.positives, "same class", COLOURS[2]),
        (found.negatives, "other class", COLOURS[4]),
    ):
        counts = kind.counts.numpy()
        if counts.sum():
            axes.stairs(counts / counts.sum(), edges, fill=True, alpha=0.35, color=colour)
            axes.stairs(counts / counts.sum(), edges, color=colour, label=f"{name}, mean {kind.mean:.2f}")
    axes.set_ylim(0, 1.3 * axes.get_ylim()[1])  # room for the legend
    axes.set_yticks([])
    axes.set_xlabel("distance", color=INK)
    axes.legend(frameon=False, labelcolor=INK, fontsize=9)
    return figure


def spectrum_figure(found: Diagnostics) -> Figure:
    """The singular values of the space over their sum, beside those of a space that uses all directions alike."""
    figure, axes = _small("Spectrum of the space")
    values = found.spectrum.numpy()
    places = np.arange(1, len(values) + 1)
    axes.plot(
        places, np.maximum(values, 1e-9), color=COLOURS[0], linewidth=1.8, marker="o" if len(values) < 3 else None
    )
    axes.axhline(1 / len(values), color=SOFT, linestyle=":", label="all directions alike")
    axes.set_yscale("log")
    axes.set_xlabel("direction", color=INK)
    axes.legend(frameon=False, labelcolor=INK, fontsize=9)
    axes.grid(axis="y", color=FAINT)
    return figure


def map_figure(places: npt.NDArray[np.float64], colours: Sequence[str]) -> Figure:
    """Items as dots at their places (items, 2) in the unit square."""
    figure = plain_figure(6, 6)
    axes = figure.add_subplot()
    axes.scatter(places[:, 0], 1 - places[:, 1], s=9, c=list(colours), linewidths=0)
    axes.set_axis_off()
    axes.set_aspect("equal")
    return figure


def _small(title: str) -> tuple[Figure, Axes]:
    figure = plain_figure(*SMALL)
    axes = figure.add_subplot()
    plain_axes(axes, title)
    return figure, axes


def _over_epochs(title: str) -> tuple[Figure, Axes]:
    from matplotlib.ticker import MaxNLocator

    figure, axes = _small(title)
    axes.set_xlabel("epoch", color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color=FAINT)
    return figure, axes


def _line(axes: Axes, records: Sequence[Record], field: str, colour: str, label: str | None = None) -> None:
    epochs, values = [record["epoch"] for record in records], [record[field] for record in records]
    axes.plot(epochs, values, color=colour, linewidth=1.8, marker="o" if len(epochs) < 3 else None, label=label)
