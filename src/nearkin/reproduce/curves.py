"""Scores on the way: what the papers' training curves are drawn from."""

from __future__ import annotations

from collections.abc import Sequence

from nearkin.training import Run

Curve = list[tuple[int, float]]


def curve(run: Run, score: str) -> Curve:
    """(step, score) at the start and after every epoch that was measured."""
    return [(record["step"], record[score]) for record in run.metrics if record["kind"] != "final" and score in record]


def steps_to_reach(points: Sequence[tuple[int, float]], error: float) -> int | None:
    """The first step, the start left out, at which a curve is as low as the error; None if it never is.

    >>> steps_to_reach([(0, 0.1), (10, 0.5), (20, 0.2)], 0.3)
    20
    """
    return next((step for step, value in points if step and value <= error), None)
