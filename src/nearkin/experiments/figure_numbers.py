"""The numbers behind the papers' figures, from the runs made here: shares, steps and places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nearkin.experiments.reproduction import embed_test_split
from nearkin.experiments.reproduction_result import ReproductionResult, RowResult, heading
from nearkin.training import Run

Curve = list[tuple[int, float]]
Numbers = dict[str, Any]


def numbers_of(result: ReproductionResult) -> Numbers:
    """What the table's ``draw`` asks for; rows without scores are left out."""
    done = [row for row in result.rows if row.here]
    match result.table.draw:
        case "sweep":
            columns = result.table.columns
            return _swept(result, done) | {column: _shares(done, column) for column in columns}
        case "learners":
            column = result.table.columns[0]
            curves = {row.row.method: _curve(result, row, column) for row in done}
            return {"curves": curves, **_swept(result, done), column: _shares(done, column)}
        case "errors":
            panels = dict.fromkeys(row.row.panel for row in done)
            return dict(_errors(result, panel) for panel in panels)
        case "plane":
            return {row.row.method: _places(result, row) for row in done}
    raise ValueError(f"{result.table.name} is drawn as {result.table.draw!r}, which is not known")


def curve(run: Run, score: str) -> Curve:
    """(step, score) at the start and after every epoch that was measured."""
    return [(record["step"], record[score]) for record in run.metrics if record["kind"] != "final" and score in record]


def steps_to_reach(points: Sequence[tuple[int, float]], error: float) -> int | None:
    """The first step, the start left out, at which a curve is as low as the error; None if it never is.

    >>> steps_to_reach([(0, 0.1), (10, 0.5), (20, 0.2)], 0.3)
    20
    """
    return next((step for step, value in points if step and value <= error), None)


def _curve(result: ReproductionResult, row: RowResult, score: str) -> Curve:
    return curve(Run(result.folder / row.run), score)


def _swept(result: ReproductionResult, done: Sequence[RowResult]) -> Numbers:
    return {result.table.swept: [row.row.set[result.table.swept] for row in done]}


def _shares(done: Sequence[RowResult], column: str) -> list[float]:
    return [row.here[column] / 100 for row in done]


def _errors(result: ReproductionResult, panel: str) -> tuple[str, Numbers]:
    """The title of a panel and its curves, with where each reaches the last error of the panel's first one."""
    own = [row for row in result.rows if row.row.panel == panel]
    curves = {}
    for row in own:
        if row.here:
            column = row.row.columns[0]
            label = f"{row.row.method} ({heading(column).removesuffix(' error')})"
            curves[label] = _curve(result, row, column)
    goal = next(iter(curves.values()))[-1][1] if own[0].here else None
    reached = {label: None if goal is None else steps_to_reach(points, goal) for label, points in curves.items()}
    title = f"{own[0].other_data} for {panel}" if own[0].other_data else panel
    return title, {"curves": curves, "goal": goal, "reached": reached}


def _places(result: ReproductionResult, row: RowResult) -> Numbers:
    """Where the two numbers of an embedding put the items of the test split, and their classes."""
    dataset, space, _ = embed_test_split(Run(result.folder / row.run))
    return {
        "places": np.round(space.embeddings.cpu().numpy().astype(float), 4).tolist(),
        "classes": [dataset.classes[label] for label in dataset.labels],
        "map": row.here["map"] / 100,
    }
