"""What is to be trained for a row: its settings, its data, and in what both differ from the paper's."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from nearkin.data.benchmarks import find, is_benchmark
from nearkin.data.sources import is_dataset_name
from nearkin.errors import UserError, unknown_name
from nearkin.experiments.differences import (
    changes,
    how_the_paper_chose,
    open_besides,
    open_settings,
    recipe_differences,
)
from nearkin.experiments.known_classes import known_classes
from nearkin.experiments.papers import Part, Row
from nearkin.experiments.recipes import read_recipe
from nearkin.experiments.reproduction_measure import views_at_test
from nearkin.training import Settings
from nearkin.training.optimise import check
from nearkin.training.prepare import absolute, load_splits
from nearkin.training.settings import by_section, knows

# Small grey pictures are nothing for the papers' networks and rates: those of `nearkin train glyphs` are taken.
ON_GLYPHS: dict[str, Any] = {
    "backbone": "small",
    "weights": "none",
    "image_size": 0,
    "augment": "none",
    "epochs": 20,
    "batch_size": 0,
    "micro_batch": 0,
    "optimizer": "adamw",
    "learning_rate": 1e-3,
    "backbone_learning_rate": 1e-3,
    "weight_decay": 1e-4,
    "schedule": "cosine",
}
MATTER_UNTRAINED = ("backbone", "weights", "image_size", "split")
OTHER_DATA = "other data"
PROTOCOLS = {
    "best-on-test": "best epoch by MAP@R on the test part, which is optimistic",
    "last": "last epoch",
    "best-on-validation": "best epoch on held-out classes",
}


@dataclass(frozen=True)
class Wishes:
    """What the user wants otherwise: settings by name, and sources by the name of the dataset they stand for."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """One row, ready to be trained.

    Attributes:
        dataset: the paper's data, by name.
        other_data: what stands for it; empty: nothing does.
        paper: the paper's settings, as far as the recipe has them.
        settings: of the run; None where it cannot be trained.
        for_glyphs: settings that were changed because glyphs are small and grey.
        given: settings that the user changed.
        said: what else is to be known about the row, in sentences.
        problem: why it cannot be trained; empty: it can.
    """

    row: Row
    dataset: str
    paper: Settings
    other_data: str = ""
    settings: Settings | None = None
    for_glyphs: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    problem: str = ""

    @property
    def differs(self) -> list[str]:
        """In what the run differs from the paper, in sentences."""
        if self.settings is None:
            return []
        sentences = {
            OTHER_DATA: self.other_data and f"{self.other_data} instead of {self.dataset}",
            "protocol": self._protocol(),
            "settings for glyphs": changes(self.paper, self.settings, self.for_glyphs),
            "other settings (--set)": changes(self.paper, self.settings, self.given),
        }
        return [*(f"{what}: {words}" for what, words in sentences.items() if words), *self.said]

    def _protocol(self) -> str:
        keep = self.settings.training.keep if self.settings and not self.row.untrained else ""
        said = PROTOCOLS.get(keep, keep)
        return f"{said}; {how_the_paper_chose(self.row.recipe)}" if keep == "best-on-test" else said

    @property
    def data(self) -> str:
        return f"{OTHER_DATA}: {self.other_data}" if self.other_data else self.dataset

    @property
    def folder(self) -> str:
        """The name of the run: rows with the same settings share one, other settings are another run."""
        assert self.settings is not None
        digest = hashlib.sha256(json.dumps(self.settings.to_tables(), sort_keys=True).encode()).hexdigest()
        return f"{self.dataset}-{'backbone' if self.row.untrained else self.settings.method}-{digest[:8]}"


def plans(part: Part, wishes: Wishes, out: Path) -> list[Plan]:
    """A plan for every row; of a figure, those of the datasets that are here, or else of the first one, on glyphs."""
    papers = [_paper_settings(part, row) for row in part.rows]
    _check(part, wishes, {settings.method for settings in papers})
    rows = [(row, paper, _source(paper, wishes)) for row, paper in zip(part.rows, papers, strict=True)]
    if part.draw:
        here = [(row, paper, source) for row, paper, source in rows if source]
        first = [(row, paper, part.glyphs) for row, paper, _ in rows if dataset_name(paper) == dataset_name(papers[0])]
        return [_plan(part, *each, wishes, out) for each in here or first]
    return [_plan(part, *each, wishes, out) for each in rows]


def datasets(part: Part) -> dict[str, bool]:
    """The datasets of a part and whether they are here.

    >>> from nearkin.experiments.papers import read_part
    >>> list(datasets(read_part("rank", "table-1")))
    ['cub200', 'cars196', 'sop']
    """
    settings = [_base(part, row) for row in part.rows]
    return {dataset_name(each): _source(each, Wishes()) is not None for each in settings}


def dataset_name(settings: Settings) -> str:
    """``vehicleid:large`` and ``./imagenet-attributes`` without what is around their names."""
    return Path(settings.data.source.partition(":")[0]).stem


def _check(part: Part, wishes: Wishes, methods: Collection[str]) -> None:
    known = datasets(part)
    for name, source in wishes.data.items():
        if name not in known:
            raise unknown_name(f"dataset of {part.name}", name, known)
        if not _present(source, wishes):
            raise UserError(f"{source} was not found; check --data {name}={source}, or see `nearkin datasets`")
    if "source" in wishes.settings:
        raise UserError(f"other data are given with --data NAME=SOURCE, where NAME is one of {', '.join(known)}")
    for setting, value in wishes.settings.items():
        if not any(knows(method, setting) for method in methods):
            by_section(min(methods), {setting: value})  # says which settings there are


def _paper_settings(part: Part, row: Row) -> Settings:
    """As in the paper, as far as the recipe can."""
    settings = _base(part, row)
    if row.instead:
        settings = replace(settings, method=row.instead, method_settings={})
    return settings.changed(**by_section(settings.method, row.set)) if row.set else settings


def _base(part: Part, row: Row) -> Settings:
    return _recipe(row.recipe) if row.recipe else Settings.from_tables(part.base, part.name)


_recipe = cache(read_recipe)  # a table names the same few again and again


def _source(paper: Settings, wishes: Wishes) -> str | None:
    """What is trained on, None where that is not here."""
    chosen = wishes.data.get(dataset_name(paper))
    if chosen is not None:
        return absolute(chosen)
    return absolute(paper.data.source) if _present(paper.data.source, wishes) else None


def _present(source: str, wishes: Wishes) -> bool:
    if is_benchmark(source):
        root = wishes.settings.get("root")
        return find(source, Path(root) if root else None) is not None
    return is_dataset_name(source) or Path(source).expanduser().exists()


def _plan(part: Part, row: Row, paper: Settings, source: str | None, wishes: Wishes, out: Path) -> Plan:
    dataset = dataset_name(paper)
    if row.not_run:
        return Plan(row, dataset, paper, problem=f"not run: {row.not_run}")
    if source is None:
        advice = f"`nearkin datasets` says where to get {dataset}, or name other data with --data {dataset}=SOURCE"
        return Plan(row, dataset, paper, problem=f"not found: {advice}")
    is_glyphs = is_dataset_name(source) and not is_benchmark(source)
    photographs = not is_glyphs and Path(source).suffix != ".npz"
    for_glyphs = ON_GLYPHS | row.on_glyphs if is_glyphs else {}
    given = {name: value for name, value in wishes.settings.items() if knows(paper.method, name)}
    changed = {"keep": paper.training.keep or "best-on-test", **for_glyphs, **given, "source": source}
    if is_glyphs and part.new_examples:
        file = out / f"known-{re.sub(r'[^a-z0-9]+', '-', source)}-{part.new_examples}.npz"
        changed["source"] = str(known_classes(file, source, part.new_examples).absolute())
    settings = paper.changed(**by_section(paper.method, changed))
    check(settings.training)
    settings.make_method()
    if is_glyphs and "batch_size" not in given:
        settings = _with_batches_that_can_be_filled(settings)

    def matters(setting: str) -> bool:
        return not row.untrained or setting in MATTER_UNTRAINED

    notes = [part.notes[note] for note in row.notes]
    return Plan(
        row,
        dataset,
        paper,
        other_data=source if source != absolute(paper.data.source) else "",
        settings=settings,
        for_glyphs=tuple(name for name in for_glyphs if name not in given and matters(name)),
        given=tuple(name for name in given if name != "keep" and matters(name)),
        said=(*notes, *_said(part, row, settings, photographs, {*for_glyphs, *given})),
    )


def _said(part: Part, row: Row, settings: Settings, photographs: bool, changed: Collection[str]) -> list[str]:
    """What the recipe does otherwise, and what it chose, as far as it matters to the row."""
    if not row.recipe:
        return []
    facts = {"photographs": photographs, "views": views_at_test(settings, row), "untrained": row.untrained}
    said = recipe_differences(row.recipe, settings, **facts)
    said = [sentence for sentence in said if sentence.partition(":")[0] not in part.untold]
    if row.untrained:
        return said
    said += open_settings(row.recipe, {*row.set, *changed}, with_method=not row.instead)
    return said + open_besides(row.recipe) if photographs else said


def _with_batches_that_can_be_filled(settings: Settings) -> Settings:
    """Those of the settings, or else the method's usual ones, which shrink to what the data have."""
    size = settings.training.batch_size
    if not size:
        return settings
    try:
        labels = load_splits(settings.data, settings.training.seed).train.labels
        settings.make_method().sampler(labels, size, seed=0)
        if size <= len(labels):
            return settings
    except UserError:
        pass
    return settings.changed(training={"batch_size": 0})
