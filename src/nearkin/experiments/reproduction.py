"""`nearkin reproduce`: every row that can be trained here is trained, once, and set beside the paper's numbers."""

from __future__ import annotations

import json
import logging
import shlex
from dataclasses import replace
from pathlib import Path

from nearkin.errors import Interrupted, OutOfRoom, UserError
from nearkin.experiments.papers import read_part
from nearkin.experiments.reproduction_figures import draw
from nearkin.experiments.reproduction_measure import scores_of, scores_of_backbone
from nearkin.experiments.reproduction_plan import Plan, Wishes, plans
from nearkin.experiments.reproduction_result import Outcome, ReproductionResult
from nearkin.experiments.runs import Task, attempt, provenance_of
from nearkin.files import write_json, write_text
from nearkin.messages import show_messages
from nearkin.training import Run
from nearkin.training.prepare import load_splits

log = logging.getLogger("nearkin")


def reproduce(paper: str, name: str, out: str | Path | None = None, wishes: Wishes | None = None) -> ReproductionResult:
    """Trains what is missing of a table or figure; what ``out`` already holds is not done again.

    Args:
        paper: one of `known_papers`.
        name: one of its `known_parts`.
        out: a folder for the runs and for the table as Markdown and JSON, of a figure also as a picture.
        wishes: other settings, other data.

    >>> reproduce("rank", "table-1", wishes=Wishes({"epochs": 1}, {"cub200": "glyphs"}))  # doctest: +SKIP
    """
    show_messages()
    part = read_part(paper, name)
    out = Path(out) if out else usual_folder(paper, name)
    wishes = wishes or Wishes()
    planned = plans(part, wishes, out)
    outcomes = []
    for number, plan in enumerate(planned, 1):
        if not plan.problem:
            log.info("%d of %d: %s, %s", number, len(planned), plan.row.method, plan.data)
        outcomes.append(_outcome(plan, out))
    runs = (Run(out / outcome.folder) for outcome in outcomes if outcome.scores)
    found = ReproductionResult(part, tuple(outcomes), provenance_of(runs), command_of(paper, name, wishes, out))
    record = found.record()
    if part.draw and any(outcome.scores for outcome in outcomes):
        record["drawn"] = draw(found, out / f"{name}.png", out)
    write_json(out / f"{name}.json", record)
    write_text(out / f"{name}.md", found.markdown())
    return found


def usual_folder(paper: str, name: str) -> Path:
    """
    >>> usual_folder("rank", "table-1")
    PosixPath('runs/reproduce-rank-table-1')
    """
    return Path("runs") / f"reproduce-{paper}-{name}"


def command_of(paper: str, name: str, wishes: Wishes, out: Path) -> str:
    """What to type to repeat it.

    >>> command_of("rank", "table-1", Wishes({"epochs": 1}, {"cub200": "my photos"}), Path("out"))
    "nearkin reproduce rank table-1 --data 'cub200=my photos' --set epochs=1 --out out"
    """
    words = ["nearkin", "reproduce", paper, name]
    for dataset, source in wishes.data.items():
        words += ["--data", f"{dataset}={source}"]
    for setting, value in wishes.settings.items():
        words += ["--set", f"{setting}={value if isinstance(value, str) else json.dumps(value)}"]
    return shlex.join([*words, "--out", str(out)])


def _outcome(plan: Plan, out: Path) -> Outcome:
    if plan.settings is None:
        return Outcome(plan, {}, problem=plan.problem)
    try:
        items = load_splits(plan.settings.data, plan.settings.training.seed).digest()
        if plan.row.untrained:
            scores = scores_of_backbone(plan.settings, plan.row, out / plan.folder, items)
            return Outcome(plan, scores, plan.folder)
        run = Run(out / plan.folder)
        run.check_data(items)
        task = Task(plan.row.method, plan.settings, run.folder)
        refused = None if task.finished else attempt(task)
        if refused:
            raise UserError(refused)
        trained = replace(plan, settings=run.settings())  # with what the run itself chose, such as its batches
        scores = scores_of(run, plan.row)
        if not scores:
            why = f"the test part of {plan.data} has other classes than its training part"
            return Outcome(trained, {}, problem=f"could not be read out: {why}; give data with all classes in both")
        return Outcome(trained, scores, plan.folder)
    except Interrupted:
        raise Interrupted("stopped; the same command goes on from here") from None
    except OutOfRoom:  # no verdict on the row: the same may work another time
        raise
    except UserError as error:
        log.warning("%s could not be run: %s", plan.row.method, error)
        return Outcome(plan, {}, problem=f"could not be run: {error}")
