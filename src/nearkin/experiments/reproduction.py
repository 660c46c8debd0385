"""A paper's table or figure again: every row that can be trained here is trained, once, and set beside the paper's."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nearkin.data import Dataset
from nearkin.data.benchmarks import is_benchmark
from nearkin.errors import Interrupted, OutOfRoom, UserError
from nearkin.evaluation import evaluate, random_gallery_scores
from nearkin.experiments.comparison_plan import set_options
from nearkin.experiments.papers import read_table
from nearkin.experiments.reproduction_plan import Plan, make_plans
from nearkin.experiments.reproduction_result import ReproductionResult, RowResult
from nearkin.experiments.runs import Task, attempt, cached, note_provenance, provenance_of
from nearkin.files import write_json, write_text
from nearkin.messages import show_messages
from nearkin.methods import Method, parse_method
from nearkin.models import Embedder
from nearkin.space import Space
from nearkin.training import Run
from nearkin.training.baseline import backbone_space
from nearkin.training.prepare import load_splits
from nearkin.training.scoring import embed_parts, part_to_measure

log = logging.getLogger("nearkin")
RANDOM_GALLERY = "random_gallery_"


def reproduce(
    paper: str, table: str, data: Mapping[str, str] | None = None, out: str | Path | None = None, **settings: Any
) -> ReproductionResult:
    """Trains what is missing of a table or figure; what ``out`` already holds is not trained again.

    Args:
        paper: "rank", "magnet", …; `known_papers` lists them.
        table: one of the paper's tables or figures, such as "table-1".
        data: other data for a dataset of the paper: ``{"cub200": "glyphs"}``.
        out: a folder for the runs and for the table as Markdown and JSON, of a figure also as a picture; by default
            ``runs/reproduce-<paper>-<table>``.
        settings: other settings, for every row whose method has them.

    >>> reproduce("rank", "table-1", data={"cub200": "glyphs"}, epochs=1)  # doctest: +SKIP
    """
    show_messages()
    wanted = read_table(paper, table)
    folder = Path(out or f"runs/reproduce-{paper}-{table}")
    plans = make_plans(wanted, data or {}, settings, folder)
    rows = []
    for number, plan in enumerate(plans, 1):
        if not plan.problem:
            log.info("%d of %d: %s, %s", number, len(plans), plan.row.method, plan.data)
        rows.append(_row_result(plan, folder))
    made = provenance_of(Run(folder / row.folder) for row in rows if row.scores)
    result = ReproductionResult(wanted, tuple(rows), made, _command(paper, table, data or {}, settings, folder), folder)
    record = result.record()
    if wanted.draw and any(row.scores for row in rows):
        from nearkin.experiments.figure_drawing import draw
        from nearkin.experiments.figure_numbers import numbers_of

        record["drawn"] = numbers_of(result)
        draw(result, record["drawn"], folder / f"{table}.png")
    write_json(folder / f"{table}.json", record)
    write_text(folder / f"{table}.md", result.markdown())
    return result


def scores_of(run: Run, plan: Plan) -> dict[str, float]:
    """By column, between 0 and 1: what training left, or what else the table asks of the model, measured once."""
    row = plan.row
    names = [row.prefix + column for column in row.columns]
    scores = run.read_scores()["after"]
    if row.read or row.test or plan.views > 1 or not set(names) <= set(scores):

        def measure() -> dict[str, float]:
            _, space, trained_on = embed_test_split(run, row.test, plan.views)
            return _measured(space, trained_on, parse_method(row.read) if row.read else run.method(), names)

        scores = cached(run.folder, (names, row.read, row.test, plan.views), measure)
    return {column: scores[name] for column, name in zip(row.columns, names, strict=True) if name in scores}


def embed_test_split(run: Run, test: str = "", views: int = 1) -> tuple[Dataset, Space, Space | None]:
    """The test split and how the run's model embeds it; and the training split, where it has the same classes."""
    settings = run.settings()
    data = settings.data
    if test and is_benchmark(data.source):
        data = replace(data, source=test)
    splits = load_splits(data, settings.training.seed)
    assert splits.test is not None  # a run without has no scores
    tested, trained_on = part_to_measure(splits, "test")
    augment = data.augment if views > 1 else "none"
    return tested, *embed_parts(Embedder.load(run.folder), tested, trained_on, views, augment)


def _row_result(plan: Plan, out: Path) -> RowResult:
    if plan.settings is None:
        return RowResult(plan, problem=plan.problem)
    try:
        items = load_splits(plan.settings.data, plan.settings.training.seed).digest()
        if plan.row.untrained:
            return RowResult(plan, _backbone_scores(plan, out / plan.folder, items), plan.folder)
        run = Run(out / plan.folder)
        run.check_data(items)
        task = Task(plan.row.method, plan.settings, run.folder)
        refused = None if task.finished else attempt(task)
        if refused:
            raise UserError(refused)
        trained = replace(plan, settings=run.settings())  # with what the run itself chose, such as its batches
        scores = scores_of(run, trained)
        if not scores:
            why = f"the test split of {plan.data} has other classes than its training split"
            return RowResult(trained, problem=f"could not be read out: {why}; give data with all classes in both")
        return RowResult(trained, scores, plan.folder)
    except Interrupted:
        raise Interrupted("stopped; the same command goes on from here") from None
    except OutOfRoom:  # no verdict on the row: the same may work another time
        raise
    except UserError as error:
        log.warning("%s could not be run: %s", plan.row.method, error)
        return RowResult(plan, problem=f"could not be run: {error}")


def _backbone_scores(plan: Plan, folder: Path, items: str) -> dict[str, float]:
    """By column, what the backbone gives without any training; measured once for these items."""
    row, settings = plan.row, plan.settings
    assert settings is not None
    names = [row.prefix + column for column in row.columns]

    def measure() -> dict[str, float]:
        note_provenance(folder, settings.training.device)
        return _measured(backbone_space(settings), None, parse_method(row.read or settings.method), names)

    scores = cached(folder, (names, row.read, items), measure)
    return {column: scores[name] for column, name in zip(row.columns, names, strict=True)}


def _measured(space: Space, trained_on: Space | None, method: Method, names: Sequence[str]) -> dict[str, float]:
    recall_at = sorted({int(k) for name in names for k in re.findall(r"recall@(\d+)", name)})
    clustering = any("nmi" in name for name in names)
    scores = evaluate(space, recall_at, clustering=clustering).scores
    scores |= method.read_out(space, trained_on, recall_at, clustering=clustering)
    if any(name.startswith(RANDOM_GALLERY) for name in names):
        found = random_gallery_scores(space, recall_at)
        scores |= {RANDOM_GALLERY + name: score for name, score in found.items()}
    return scores


def _command(paper: str, table: str, data: Mapping[str, str], settings: Mapping[str, Any], out: Path) -> str:
    """What to type to repeat it.

    >>> _command("rank", "table-1", {"cub200": "my photos"}, {"epochs": 1}, Path("out"))
    "nearkin reproduce rank table-1 --data 'cub200=my photos' --set epochs=1 --out out"
    """
    others = [word for name, source in data.items() for word in ("--data", f"{name}={source}")]
    return shlex.join(["nearkin", "reproduce", paper, table, *others, *set_options(settings), "--out", str(out)])
