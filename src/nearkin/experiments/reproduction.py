"""A paper's table or figure again: every row that can be trained here is trained, once, and set beside the paper's."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from nearkin.data import Dataset
from nearkin.data.benchmarks import is_benchmark
from nearkin.errors import Interrupted, OutOfRoom, UserError
from nearkin.evaluation.galleries import RANDOM_GALLERY
from nearkin.experiments.comparison_plan import set_options
from nearkin.experiments.papers import read_table
from nearkin.experiments.reproduction_plan import Plan, make_plans
from nearkin.experiments.reproduction_result import ReproductionResult, RowResult
from nearkin.experiments.runs import Task, attempt, cached, note_provenance, provenance_of
from nearkin.files import write_json, write_text
from nearkin.messages import show_messages
from nearkin.methods import parse_method
from nearkin.models import Embedder, embed_dataset
from nearkin.models.model import usual_device
from nearkin.space import Space
from nearkin.training import Run, Settings
from nearkin.training.baseline import backbone_space
from nearkin.training.prepare import load_splits
from nearkin.training.scoring import score_space, split_to_measure

log = logging.getLogger("nearkin")


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
    out = Path(out or f"runs/reproduce-{paper}-{table}")
    plans = make_plans(wanted, data or {}, settings, out)
    rows = []
    for number, plan in enumerate(plans, 1):
        if not plan.problem:
            log.info("%d of %d: %s, %s", number, len(plans), plan.row.method, plan.other_data or plan.dataset)
        rows.append(_row_result(plan, out))
    made = provenance_of(Run(out / row.run) for row in rows if row.here)
    result = ReproductionResult(wanted, tuple(rows), made, _command(paper, table, data or {}, settings, out), out)
    record = result.record()
    if wanted.draw and any(row.here for row in rows):
        from nearkin.experiments.figure_drawing import draw
        from nearkin.experiments.figure_numbers import numbers_of

        record["drawn"] = numbers_of(result)
        draw(result, record["drawn"], out / f"{table}.png")
    write_json(out / f"{table}.json", record)
    write_text(out / f"{table}.md", result.markdown())
    return result


def embed_test_split(run: Run, test: str = "", views: int = 1) -> tuple[Dataset, Space, Space | None]:
    """The test split and how the run's model embeds it; and the training split, where it has the same classes."""
    data = run.settings().data
    if test and is_benchmark(data.source):
        data = replace(data, source=test)
    splits = load_splits(data, run.settings().training.seed)
    tested, trained_on = split_to_measure(splits, "test")
    model = Embedder.load(run.folder).to(usual_device()).model
    embedded = partial(embed_dataset, model, views=views, augment=data.augment if views > 1 else "none")
    return tested, embedded(tested), None if trained_on is None else embedded(trained_on)


def _row_result(plan: Plan, out: Path) -> RowResult:
    row, settings, problem = plan.row, plan.settings, plan.problem
    scores: dict[str, float] = {}
    if settings is not None:
        try:
            run, settings = _trained(plan, settings, out)
            scores = _scores(replace(plan, settings=settings), settings, run)
            if not scores:
                why = f"the test split of {plan.other_data or plan.dataset} has other classes than its training split"
                problem = f"could not be read out: {why}; give data with all classes in both"
        except Interrupted:
            raise Interrupted("stopped; the same command goes on from here") from None
        except OutOfRoom:  # no verdict on the row: the same may work another time
            raise
        except UserError as error:
            log.warning("%s could not be run: %s", row.method, error)
            problem = f"could not be run: {error}"
    return RowResult(
        row=row,
        dataset=plan.dataset,
        other_data=plan.other_data,
        run=plan.folder,
        paper=dict(zip(row.columns, row.paper, strict=True)),
        here={column: 100 * score for column, score in scores.items()},
        problem=problem,
        differs=plan.differs(settings) if settings and not problem else [],
    )


def _trained(plan: Plan, settings: Settings, out: Path) -> tuple[Run, Settings]:
    """The row's run, trained unless the backbone alone is wanted, and its settings with what the run itself chose."""
    run = Run(out / plan.folder)
    if plan.row.untrained:
        return run, settings
    run.check_data(load_splits(settings.data, settings.training.seed).digest())
    task = Task(plan.row.method, settings, run.folder)
    refused = None if task.finished else attempt(task)
    if refused:
        raise UserError(refused)
    return run, run.settings()


def _scores(plan: Plan, settings: Settings, run: Run) -> dict[str, float]:
    """By column, between 0 and 1: what training left, or what else the table asks of the model, measured once."""
    row = plan.row
    names = [row.prefix + column for column in row.columns]
    scores = {} if row.untrained else run.scores["after"]
    if row.read or row.test or plan.views > 1 or not set(names) <= set(scores):

        def measure() -> dict[str, float]:
            if row.untrained:
                note_provenance(run.folder, settings.training.device)
                space, trained_on, method = backbone_space(settings), None, None
            else:
                (_, space, trained_on), method = embed_test_split(run, row.test, plan.views), run.method()
            method = parse_method(row.read) if row.read else method
            ks = sorted({int(k) for name in names for k in re.findall(r"recall@(\d+)", name)})
            clustering = "kmeans" if any("nmi" in name for name in names) else None
            protocol = "random-gallery" if names[0].startswith(RANDOM_GALLERY) else ""
            return score_space(space, method, trained_on, ks, clustering, protocol).scores

        items = load_splits(settings.data, settings.training.seed).digest() if row.untrained else ""
        scores = cached(run.folder, (names, row.read, row.test, plan.views, items), measure)
    return {column: scores[name] for column, name in zip(row.columns, names, strict=True) if name in scores}


def _command(paper: str, table: str, data: Mapping[str, str], settings: Mapping[str, Any], out: Path) -> str:
    """What to type to repeat it.

    >>> _command("rank", "table-1", {"cub200": "my photos"}, {"epochs": 1}, Path("out"))
    "nearkin reproduce rank table-1 --data 'cub200=my photos' --set epochs=1 --out out"
    """
    others = [word for name, source in data.items() for word in ("--data", f"{name}={source}")]
    return shlex.join(["nearkin", "reproduce", paper, table, *others, *set_options(settings), "--out", str(out)])
