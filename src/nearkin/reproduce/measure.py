"""The scores of a row: those that training left, or what else the paper's table asks of the same model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nearkin.compare.task import MADE
from nearkin.data import Dataset
from nearkin.data.benchmarks import is_benchmark
from nearkin.evaluation import evaluate, random_gallery_scores
from nearkin.evaluation.galleries import RANDOM_GALLERY
from nearkin.files import write_json
from nearkin.methods import Method, parse_method
from nearkin.models import Embedder
from nearkin.report.provenance import provenance
from nearkin.reproduce.parts import Row
from nearkin.space import Space
from nearkin.training import Run, Settings
from nearkin.training.baseline import backbone_space
from nearkin.training.once import measured_once
from nearkin.training.prepare import load_splits
from nearkin.training.scoring import embed_parts, part_to_measure


def scores_of(run: Run, row: Row) -> dict[str, float]:
    """By column, between 0 and 1; measured once and kept with the run."""
    names = [row.prefix + column for column in row.columns]
    scores = run.scores["after"]
    views = views_at_test(run.settings(), row)
    if row.read or row.test or views > 1 or not set(names) <= set(scores):

        def measured() -> dict[str, float]:
            _, space, trained_on = space_of_test_part(run, row.test, views)
            return _measured(space, trained_on, parse_method(row.read) if row.read else run.method(), names)

        scores = measured_once(run.folder, (names, row.read, row.test, views), measured)
    return {column: scores[name] for column, name in zip(row.columns, names, strict=True) if name in scores}


def scores_of_backbone(settings: Settings, row: Row, folder: Path, items: str) -> dict[str, float]:
    """By column, what the backbone gives without any training; measured once for these items and kept in the folder."""
    names = [row.prefix + column for column in row.columns]
    method = parse_method(row.read or settings.method)

    def measured() -> dict[str, float]:
        write_json(folder / MADE, provenance(settings.training.device))
        return _measured(backbone_space(settings), None, method, names)

    scores = measured_once(folder, (names, row.read, items), measured)
    return {column: scores[name] for column, name in zip(row.columns, names, strict=True)}


def views_at_test(settings: Settings, row: Row) -> int:
    """How many views of an item are averaged; one where there is nothing random in them."""
    return row.views if settings.data.augment != "none" else 1


def space_of_test_part(run: Run, test: str = "", views: int = 1) -> tuple[Dataset, Space, Space | None]:
    """The test part and how the run's model embeds it; and the training part, where it knows the same classes."""
    settings = run.settings()
    data = settings.data
    if test and is_benchmark(data.source):
        data = replace(data, source=test)
    splits = load_splits(data, settings.training.seed)
    assert splits.test is not None  # a run without has no scores
    tested, trained_on = part_to_measure(splits, "test")
    augment = data.augment if views > 1 else "none"
    return tested, *embed_parts(Embedder.load(run.folder), tested, trained_on, views, augment)


def _measured(space: Space, trained_on: Space | None, method: Method, names: Sequence[str]) -> dict[str, float]:
    recall_at = sorted({int(k) for name in names for k in re.findall(r"recall@(\d+)", name)})
    clustering = "kmeans" if any("nmi" in name for name in names) else None
    scores = evaluate(space, recall_at=recall_at, clustering=clustering).scores
    scores |= method.read_out(space, trained_on, recall_at, clustering=clustering)
    if any(name.startswith(RANDOM_GALLERY) for name in names):
        found = random_gallery_scores(space, recall_at)
        scores |= {RANDOM_GALLERY + name: score for name, score in found.items()}
    return scores
