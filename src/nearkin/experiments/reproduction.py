"""Reproduces a table or figure of a paper: trains every row whose data are found, and compares the numbers."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from nearkin.data.benchmarks import is_benchmark
from nearkin.errors import Interrupted, ResourceError, UserError
from nearkin.evaluation.galleries import RANDOM_GALLERY
from nearkin.experiments.comparison_plan import set_options
from nearkin.experiments.paper_figures import draw, make_panels
from nearkin.experiments.papers import Row, read_table
from nearkin.experiments.reproduction_plan import Plan, make_plans
from nearkin.experiments.reproduction_result import ReproductionResult, RowResult
from nearkin.experiments.runs import Task, attempt, cached, note_provenance, provenance_of
from nearkin.files import write_json, write_text
from nearkin.messages import show_messages
from nearkin.methods import parse_method
from nearkin.models import Embedder, embed_dataset
from nearkin.models.model import default_device
from nearkin.space import Space
from nearkin.training import Run, Settings
from nearkin.training.baseline import backbone_space
from nearkin.training.prepare import load_splits
from nearkin.training.scoring import score_space, split_to_measure

log = logging.getLogger("nearkin")


def reproduce(
    paper: str, table: str, data: Mapping[str, str] | None = None, out: str | Path | None = None, **settings: Any
) -> ReproductionResult:
    """Reproduces a table or figure of a paper and compares the numbers. Finished runs in ``out`` are reused.

    Args:
        paper: "rank", "magnet", …; `known_papers` lists them.
        table: table or figure of the paper, such as "table-1".
        data: replacements for datasets of the paper: ``{"cub200": "glyphs"}``.
        out: folder for the runs and the results (Markdown, JSON, and a PNG of a figure); by default
            ``runs/reproduce-<paper>-<table>``.
        settings: settings to change, in every row whose method has them.

    >>> reproduce("rank", "table-1", data={"cub200": "glyphs"}, epochs=1)  # doctest: +SKIP
    """
    show_messages()
    wanted = read_table(paper, table)
    out = Path(out or f"runs/reproduce-{paper}-{table}")
    plans = make_plans(wanted, data or {}, settings)
    rows = []
    for number, plan in enumerate(plans, 1):
        if plan.settings is not None:
            log.info("%d of %d: %s, %s", number, len(plans), plan.row.method, plan.other_data or plan.dataset)
        rows.append(_row_result(plan, out))
    made = provenance_of(Run(out / row.run) for row in rows if row.here)
    result = ReproductionResult(wanted, tuple(rows), made, _command(paper, table, data or {}, settings, out), out)
    record = result.record()
    if wanted.draw and (panels := make_panels(result)):
        record["drawn"] = [vars(panel) for panel in panels]
        draw(result, panels, out / f"{table}.png")
    write_json(out / f"{table}.json", record)
    write_text(out / f"{table}.md", result.markdown())
    return result


def _row_result(plan: Plan, out: Path) -> RowResult:
    row, settings = plan.row, plan.settings
    result = RowResult(row.method, row.recipe, plan.dataset, plan.other_data, plan.folder, row.paper)
    if settings is None:
        why = f"not found: see `nearkin datasets` for where to get {plan.dataset}, or replace it with other data"
        return replace(result, problem=why)
    try:
        run = Run(out / plan.folder)
        settings = settings if row.untrained else _trained(row.method, settings, run)
        scores = _scores(row, settings, run)
    except Interrupted:
        raise Interrupted("stopped; run the same command to continue") from None
    except ResourceError:  # not the row's fault: it may work another time
        raise
    except UserError as error:
        log.warning("%s could not be run: %s", row.method, error)
        return replace(result, problem=f"could not be run: {error}")
    here = {column: 100 * score for column, score in scores.items()}
    return replace(result, here=here, differs=plan.differs(settings))


def _trained(name: str, settings: Settings, run: Run) -> Settings:
    """Trains the run unless it is finished; returns its settings with all defaults filled in."""
    run.check_data(load_splits(settings.data, settings.training.seed).digest())
    task = Task(name, settings, run.folder)
    refused = None if task.finished else attempt(task)
    if refused:
        raise UserError(refused)
    return run.settings()


def _scores(row: Row, settings: Settings, run: Run) -> dict[str, float]:
    """The scores by column, from 0 to 1; scores that training did not compute are computed once."""
    names = [row.prefix + column for column in row.paper]
    views = row.views if settings.data.augment != "none" else 1
    scores = {} if row.untrained else run.scores["after"]
    if row.read or row.test or views > 1 or not set(names) <= set(scores):
        items = load_splits(settings.data, settings.training.seed).digest() if row.untrained else ""
        key = (names, row.read, row.test, views, items)
        scores = cached(run.folder, key, lambda: _measured(row, names, views, settings, run))
    if not set(names) <= set(scores):
        raise UserError(
            f"the test and training splits of {settings.data.source} have different classes; use data with the same "
            "classes in both"
        )
    return {column: scores[name] for column, name in zip(row.paper, names, strict=True)}


def _measured(row: Row, names: list[str], views: int, settings: Settings, run: Run) -> dict[str, float]:
    if row.untrained:
        note_provenance(run.folder, settings.training.device)
        space, trained_on, method = backbone_space(settings), None, None
    else:
        (space, trained_on), method = _embedded(run, row.test, views), run.method()
    method = parse_method(row.read) if row.read else method
    ks = sorted({int(k) for name in names for k in re.findall(r"recall@(\d+)", name)})
    clustering = "kmeans" if any("nmi" in name for name in names) else None
    protocol = "random-gallery" if names[0].startswith(RANDOM_GALLERY) else ""
    return score_space(space, method, trained_on, ks, clustering, protocol).scores


def _embedded(run: Run, test: str, views: int) -> tuple[Space, Space | None]:
    """The test split, embedded by the run's model, and the training split if it has the same classes."""
    data = run.settings().data
    if test and is_benchmark(data.source):
        data = replace(data, source=test)
    splits = load_splits(data, run.settings().training.seed)
    tested, trained_on = split_to_measure(splits, "test")
    model = Embedder.load(run.folder).to(default_device()).model
    embedded = partial(embed_dataset, model, views=views, augment=data.augment if views > 1 else "none")
    return embedded(tested), None if trained_on is None else embedded(trained_on)


def _command(paper: str, table: str, data: Mapping[str, str], settings: Mapping[str, Any], out: Path) -> str:
    """The command that repeats a reproduction.

    >>> _command("rank", "table-1", {"cub200": "my photos"}, {"epochs": 1}, Path("out"))
    "nearkin reproduce rank table-1 --data 'cub200=my photos' --set epochs=1 --out out"
    """
    others = [word for name, source in data.items() for word in ("--data", f"{name}={source}")]
    return shlex.join(["nearkin", "reproduce", paper, table, *others, *set_options(settings), "--out", str(out)])
