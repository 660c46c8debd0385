"""The figures of a run report, small enough to fit side by side: learning curves, distances, spectrum, static map."""

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
CURVES = ("recall@1", "map@r")
SMALL = (4.2, 2.8)  # inches


def learning_figures(records: Sequence[Record], kept_epoch: int | None) -> dict[str, Figure]:
    """Figures by file name: loss, evaluation scores and learning rate over epochs."""
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
        for colour, score in zip(COLOURS, CURVES, strict=False):
            _line(axes, start + measured, score, colour, score_name(score))
        if kept_epoch is not None:
            axes.axvline(kept_epoch, color=SOFT, linestyle=":", label=f"kept: epoch {kept_epoch}")
        axes.legend(frameon=False, labelcolor=INK, fontsize=9)
        figures["scores"] = figure
    return {name: figures[name] for name in ("loss", "scores", "learning-rate") if name in figures}


def distances_figure(found: Diagnostics) -> Figure:
    """Histograms of the distances between items of the same class and of different classes."""
    figure, axes = _small("Distances between pairs of items")
    edges = found.edges.numpy()
    for kind, name, colour in (
        (found.positives, "same class", COLOURS[2]),
        (found.negatives, "different classes", COLOURS[4]),
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
    """Normalised singular values of the embeddings, compared with those of a uniform spectrum."""
    figure, axes = _small("Spectrum of the space")
    values = found.spectrum.numpy()
    numbers = np.arange(1, len(values) + 1)
    axes.plot(
        numbers, np.maximum(values, 1e-9), color=COLOURS[0], linewidth=1.8, marker="o" if len(values) < 3 else None
    )
    axes.axhline(1 / len(values), color=SOFT, linestyle=":", label="uniform")
    axes.set_yscale("log")
    axes.set_xlabel("index of the singular value", color=INK)
    axes.legend(frameon=False, labelcolor=INK, fontsize=9)
    axes.grid(axis="y", color=FAINT)
    return figure


def map_figure(points: npt.NDArray[np.float64], colours: Sequence[str]) -> Figure:
    """A scatter plot of points (items, 2) in the unit square."""
    figure = plain_figure(6, 6)
    axes = figure.add_subplot()
    axes.scatter(points[:, 0], 1 - points[:, 1], s=9, c=list(colours), linewidths=0)
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
