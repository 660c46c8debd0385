"""The style of all figures (colours, axes), and how they are saved."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from nearkin.files import atomic_path, write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, SOFT, FAINT = "#1f2933", "#7b8794", "#e4e7eb"
COLOURS = (
    *("#2463eb", "#e8590c", "#2b8a3e", "#9c36b5", "#c92a2a", "#0b7285", "#e67700", "#5c7cfa", "#845ef7", "#66a80f"),
    *("#d6336c", "#495057", "#a07855"),
)


def plain_figure(width: float, height: float) -> Figure:
    """A white figure; its size is in inches. It does not use pyplot, so it needs no display and no closing."""
    from matplotlib.figure import Figure

    figure: Figure = Figure((width, height), layout="constrained", facecolor="white")
    return figure


def plain_axes(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", color=INK, fontsize=11, fontweight="bold")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(SOFT)
    axes.tick_params(length=0, colors=INK)
    axes.grid(axis="x", color=FAINT)
    axes.set_axisbelow(True)


def svg(figure: Figure) -> str:
    """The figure as an ``<svg>`` element. The output is deterministic, and text stays text.

    >>> svg(plain_figure(2, 1))[:4]
    '<svg'
    """
    from matplotlib import rc_context

    content = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "nearkin"}):
        figure.savefig(content, format="svg", metadata={"Date": None})
    text = content.getvalue()
    return text[text.index("<svg") :]


def save_figure(figure: Figure, target: Path) -> None:
    """Saves a PNG and an SVG file; ``target`` has no suffix."""
    write_text(target.with_suffix(".svg"), svg(figure))
    with atomic_path(target.with_suffix(".png")) as partial:
        figure.savefig(partial, dpi=200)
