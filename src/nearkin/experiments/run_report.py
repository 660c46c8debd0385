"""Gathers what the report of a run shows: its records, and one of its splits embedded by its model."""

from __future__ import annotations

import logging
import platform
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nearkin.data import Dataset, ImageArray, Splits, Vectors
from nearkin.data.hierarchy import true_classes
from nearkin.data.items import Items, LazyImages
from nearkin.data.thumbnails import thumbnail
from nearkin.errors import UserError, unknown_name
from nearkin.evaluation import confidence_intervals, diagnostics, evaluate
from nearkin.experiments.provenance import provenance
from nearkin.files import read_text
from nearkin.methods import Groups, Method
from nearkin.models import Embedder, embed_dataset
from nearkin.models.model import default_device
from nearkin.reports.run_page import Group, Grouping, RunReport
from nearkin.reports.run_report import write_run_report
from nearkin.reports.split import EmbeddedSplit
from nearkin.reports.thumbnails import Thumbnails
from nearkin.training import Run, Settings
from nearkin.training.checkpoint import load_checkpoint
from nearkin.training.model_selection import KEEP, PRIMARY
from nearkin.training.prepare import load_splits
from nearkin.training.verdict import scores_of

log = logging.getLogger("nearkin")
SPLITS = ("train", "validation", "test")
SHOWN_CLASSES, SHOWN_ITEMS = 6, 8


def write_report(
    run: str | Path,
    out: str | Path | None = None,
    split: str = "test",
    figures: bool = True,
    dataset: Dataset | None = None,
    embedder: Embedder | None = None,
) -> Path:
    """Writes ``report.html`` into the run's folder, or to ``out``; returns the path.

    Args:
        run: folder of the run.
        split: split to show: test, validation or train.
        figures: whether to write the figures to the run's ``figures/`` as well, as PNG and SVG.
        dataset, embedder: the run's data and model, if its folder cannot describe them; None: read from the folder.

    >>> write_report("runs/demo")  # doctest: +SKIP
    PosixPath('runs/demo/report.html')
    """
    target = Path(out) if out else Path(run) / "report.html"
    write_run_report(gather(run, split, dataset, embedder), target, Path(run) / "figures" if figures else None)
    return target


def gather(
    folder: str | Path, split: str = "test", dataset: Dataset | None = None, embedder: Embedder | None = None
) -> RunReport:
    """Reads a run and embeds one of its splits; a notice says what is missing.

    If there is no test split, it shows the validation split, or else the training split.
    """
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    run = Run.open(folder)
    if not (run.model_folder / "model.json").is_file():
        raise UserError(f"{folder} has no model yet; continue training with: {run.resume_command}")
    notices: list[str] = []
    settings, records = run.settings(), run.metrics
    if (keep := settings.training.keep) not in KEEP:  # training always fills it in
        raise UserError(f"{run.config_file} has changed since training (keep is '{keep}'); restore it")
    scores = run.scores if run.scores_file.is_file() else _scores_so_far(run, settings, records, notices)
    splits = _splits(settings, dataset, notices)
    embedded, grouping, facts = None, None, _facts(run, settings)
    if splits is not None:
        embedder = embedder or Embedder.load(run.folder).to(default_device())
        if not run.same_data(splits.digest()):
            scores = {}
            notices.append(
                "The data have changed since this run started: the model may have been trained on test classes. "
                "The scores below are for the current data; the scores from training are left out."
            )
        shown = _shown_split(splits, split, notices)
        items = true_classes(getattr(splits, shown))
        embedded = _embedded(embedder, shown, items, notices)
        grouping = _grouping(run, settings, splits.train, embedder)
        facts.append(f"{shown} split: {len(items):,} items of {len(items.present_classes):,} classes")
    versions = {"Python": platform.python_version()} | {name: version(name) for name in ("torch", "timm")}
    return RunReport(
        title=f"{settings.method} on {embedded.dataset if embedded else settings.data.source}",
        facts=facts,
        notices=notices,
        outcome=scores.get("outcome", ""),
        verdict=scores.get("verdict", ""),
        protocol=KEEP[keep],
        records=records,
        kept_epoch=_kept_epoch(keep, records),
        **{when: scores.get(when, {}) for when in ("backbone", "before", "after")},
        split=embedded,
        grouping=grouping,
        config=read_text(run.config_file),
        command=f"nearkin train --config {shlex.quote(str(run.config_file))}",
        made=provenance() | versions,
    )


def thumbnails_of(items: Items) -> Thumbnails | None:
    """Thumbnails of items; None for vectors."""
    if isinstance(items, Vectors):
        return None
    grey = isinstance(items, ImageArray) and items.channels == 1
    return Thumbnails(partial(thumbnail, items), grey, threads=not isinstance(items, LazyImages))


def _scores_so_far(
    run: Run, settings: Settings, records: Sequence[Mapping[str, Any]], notices: list[str]
) -> dict[str, Any]:
    """The scores of a run that has not finished."""
    epoch = max((record["epoch"] for record in records), default=0)
    notices.append(
        f"Training has not finished (epoch {epoch} of {settings.training.epochs}); this is the best model so far. "
        f"Continue with: {run.resume_command}"
    )
    return {"before": scores_of(records, "before", "test")}


def _splits(settings: Settings, dataset: Dataset | None, notices: list[str]) -> Splits | None:
    try:
        return load_splits(settings.data, settings.training.seed, dataset)
    except UserError as error:
        notices.append(
            f"The data cannot be read ({error}). Left out: intervals, map, neighbours, classes, distances, spectrum."
        )
        return None


def _facts(run: Run, settings: Settings) -> list[str]:
    model, epochs = settings.model, settings.training.epochs
    saved = date.fromtimestamp((run.model_folder / "model.json").stat().st_mtime).isoformat()
    return [
        f"backbone {model.backbone}" + (", frozen" if model.freeze_backbone else ""),
        f"{model.dim or 'no head, all'} dimensions, "
        + ("not normalised" if model.normalize == "never" else "of unit length"),
        "1 epoch" if epochs == 1 else f"{epochs} epochs",
        f"seed {settings.training.seed}",
        f"model saved {saved}",
    ]


def _kept_epoch(keep: str, records: Sequence[Mapping[str, Any]]) -> int | None:
    """The epoch whose model was kept, if scores chose it; 0: before training."""
    kinds = ("before", "evaluation") if keep == "best-on-validation" else ("evaluation",)
    split = "test" if keep == "best-on-test" else "validation"
    measured = [record for record in records if record["kind"] in kinds and record["split"] == split]
    if keep == "last" or not measured:
        return None
    return int(max(measured, key=lambda record: record[PRIMARY])["epoch"])  # the first of equal ones, as in training


def _shown_split(splits: Splits, split: str, notices: list[str]) -> str:
    if getattr(splits, split) is not None:
        return split
    if split == "validation":
        raise UserError("this run has no validation split; choose test or train")
    instead = "train" if splits.validation is None else "validation"
    called, seen = {
        "train": ("training split", "which the model was trained on"),
        "validation": ("validation split", "which the model may have been chosen on"),
    }[instead]
    notices.append(f"There is no test split: everything below shows the {called}, {seen}.")
    return instead


def _embedded(embedder: Embedder, name: str, dataset: Dataset, notices: list[str]) -> EmbeddedSplit:
    space = embed_dataset(embedder.model, dataset)
    result = None
    try:
        result = evaluate(space)
        intervals = confidence_intervals(result, space, over="classes")
    except UserError as error:
        what, intervals = "Intervals" if result else "Scores, neighbours, classes and confusions", {}
        notices.append(f"{what} are left out: {error}.")
    if result is not None:
        result = replace(result, split=name, intervals=intervals, retrieval=result.retrieval.to("cpu"))
    thumbnails, found = thumbnails_of(dataset.items), diagnostics(space)
    return EmbeddedSplit(name, dataset.name, space.to("cpu"), dataset.classes, thumbnails, result, found)


def _grouping(run: Run, settings: Settings, train: Dataset, embedder: Embedder) -> Grouping | None:
    """The groups that the run's method finds in the training split; None for methods without groups.

    They are in the run's last checkpoint. If there is none, or the data have changed, the method finds them again in
    the training split, embedded by the kept model.
    """
    try:
        method = settings.make_method()
    except UserError:  # the settings do not describe the method
        return None
    if method.refresh_every is None or type(method).groups is Method.groups:  # it divides nothing
        return None
    found = _kept_groups(run, settings, train, embedder.model.spec.dim)
    source = "from the last checkpoint"
    if found is None:
        method.sampler(train.dense_labels, settings.training.batch_size, settings.training.seed)
        method.on_refresh(embed_dataset(embedder.model, train, head=method.refresh_on == "embeddings"))
        found = method.groups()
        source = "found for this report by the method, with the kept model"
    if found is None:
        return None
    groups = _within_classes(found, train, embedder) if found.within_classes else _across_classes(found, train)
    return Grouping(found.title, source, groups, thumbnails_of(train.items))


def _kept_groups(run: Run, settings: Settings, train: Dataset, dim: int) -> Groups | None:
    """The groups in the last checkpoint, if they fit the data."""
    method, training = settings.make_method(), settings.training
    method.prepare(len(train.present_classes), dim, training.epochs)
    sampler = method.sampler(train.dense_labels, training.batch_size, training.seed)
    try:
        load_checkpoint(run.checkpoint_file, {"method": method, "sampler": sampler}, torch.device("cpu"))
        found = method.groups()
    except Exception as error:  # missing, damaged, or of another version: groups are found again
        log.info("the last checkpoint has no groups (%s)", error)
        return None
    return found if found is not None and len(found.group_of) == len(train) else None


def _within_classes(found: Groups, train: Dataset, embedder: Embedder) -> list[Group]:
    """The groups of a few random classes, those with several groups first; shows the items nearest to each mean."""
    classes = np.random.default_rng(0).permutation(train.present_classes).tolist()
    groups_of = {label: np.unique(found.group_of[train.labels == label]).tolist() for label in classes}
    shown = sorted(classes, key=lambda label: len(groups_of[label]) < 2)[:SHOWN_CLASSES]
    rows = np.flatnonzero(np.isin(train.labels, shown))
    points = embed_dataset(embedder.model, train.take(rows)).embeddings.cpu().numpy()
    groups = []
    for label in shown:
        for number, group in enumerate(groups_of[label], 1):
            own = found.group_of[rows] == group
            far = np.square(points[own] - points[own].mean(axis=0)).sum(axis=1)
            nearest = rows[own][np.argsort(far, kind="stable")][:SHOWN_ITEMS].tolist()
            about = f"{found.name} {number} of {len(groups_of[label])}: {own.sum():,} items"
            groups.append(Group(train.classes[label], about, dict.fromkeys(nearest, train.classes[label])))
    return groups


def _across_classes(found: Groups, train: Dataset) -> list[Group]:
    """All groups: number of items, largest classes, some random items."""
    rng = np.random.default_rng(0)
    groups = []
    for group in np.unique(found.group_of).tolist():
        rows = np.flatnonzero(found.group_of == group)
        classes = Counter(train.labels[rows].tolist())
        largest = ", ".join(f"{train.classes[label]} ({count})" for label, count in classes.most_common(6))
        about = f"{len(rows):,} items of {len(classes):,} classes; most: {largest}"
        some = rng.choice(rows, min(SHOWN_ITEMS, len(rows)), replace=False).tolist()
        groups.append(Group(f"{found.name} {group + 1}", about, {i: train.classes[train.labels[i]] for i in some}))
    return groups
