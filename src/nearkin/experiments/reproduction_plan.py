"""What is trained for every row of a paper's table: its settings, its data, and where both differ from the paper's."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nearkin.data.benchmarks import find, is_benchmark
from nearkin.data.sources import is_dataset_name
from nearkin.errors import UserError, unknown_name
from nearkin.experiments.known_classes import known_classes
from nearkin.experiments.papers import PaperTable, Row, read_paper
from nearkin.experiments.recipes import read_recipe, recipe_tables
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
    "best-on-test": "best epoch by MAP@R on the test split, which is optimistic",
    "last": "last epoch",
    "best-on-validation": "best epoch on held-out classes",
}
# What a setting of 0 stands for.
PLACEHOLDERS = {
    "image_size": "the backbone's own",
    "batch_size": "the method's usual",
    "micro_batch": "the whole batch",
    "backbone_learning_rate": "the usual share of the head's",
    "loss_learning_rate": "the head's",
}


@dataclass(frozen=True)
class Plan:
    """One row, ready to be trained.

    Attributes:
        paper: the paper's settings, as far as the recipe has them.
        source: what is trained on; empty where that is not here.
        settings: of the run; None where it cannot be trained.
        overrides: settings that the user changed.
        problem: why it cannot be trained; empty: it can.
    """

    table: PaperTable
    row: Row
    paper: Settings
    source: str = ""
    settings: Settings | None = None
    overrides: tuple[str, ...] = ()
    problem: str = ""

    @property
    def dataset(self) -> str:
        """The paper's data by name: ``vehicleid:large`` and ``./mnist.npz`` without what is around their names."""
        return Path(self.paper.data.source.partition(":")[0]).stem

    @property
    def other_data(self) -> str:
        """What stands for the paper's data; empty: nothing does."""
        return self.source if self.source != absolute(self.paper.data.source) else ""

    @property
    def data(self) -> str:
        return f"{OTHER_DATA}: {self.other_data}" if self.other_data else self.dataset

    @property
    def on_glyphs(self) -> dict[str, Any]:
        """Settings that are changed because glyphs are small and grey."""
        return ON_GLYPHS | self.row.on_glyphs if is_glyphs(self.source) else {}

    @property
    def folder(self) -> str:
        """The name of the run: rows with the same settings share one, other settings are another run."""
        assert self.settings is not None
        digest = hashlib.sha256(json.dumps(self.settings.to_tables(), sort_keys=True).encode()).hexdigest()
        return f"{self.dataset}-{'backbone' if self.row.untrained else self.settings.method}-{digest[:8]}"

    @property
    def views(self) -> int:
        """How many views of an item are averaged at test; one where there is nothing random in them."""
        return self.row.views if self.settings and self.settings.data.augment != "none" else 1

    @property
    def differs(self) -> list[str]:
        """Where the run differs from the paper, in sentences."""
        if self.settings is None:
            return []
        sentences = {
            OTHER_DATA: self.other_data and f"{self.other_data} instead of {self.dataset}",
            "protocol": "" if self.row.untrained else self._protocol(self.settings.training.keep),
            "settings for glyphs": self._changes(self.settings, [n for n in self.on_glyphs if n not in self.overrides]),
            "other settings (--set)": self._changes(self.settings, [n for n in self.overrides if n != "keep"]),
        }
        notes = [self.table.notes[note] for note in self.row.notes]
        labelled = [f"{what}: {words}" for what, words in sentences.items() if words]
        return [*labelled, *notes, *(self._recipe_differs(self.settings) if self.row.recipe else [])]

    def _protocol(self, keep: str) -> str:
        said = PROTOCOLS.get(keep, keep)
        if keep != "best-on-test":
            return said
        chose = read_paper(_origin(self.row)["paper"]).chose if self.row.recipe else "how the paper chose is not said"
        return f"{said}; {chose}"

    def _changes(self, settings: Settings, names: Iterable[str]) -> str:
        """Those of the named settings that differ from the paper's: "epochs = 1 instead of 222"."""
        old, new = _flat(self.paper), _flat(settings)
        return ", ".join(
            f"{name} = {_shown(name, new[name])}" + (f" instead of {_shown(name, old[name])}" if name in old else "")
            for name in names
            if name in new and new[name] != old.get(name) and (not self.row.untrained or name in MATTER_UNTRAINED)
        )

    def _recipe_differs(self, settings: Settings) -> list[str]:
        """What the recipe does otherwise, and what it chose because the paper is silent, as far as it matters here."""
        origin = _origin(self.row)
        paper = read_paper(origin["paper"])
        methods = (settings.method, str(settings.method_settings.get("wraps", "")).partition(":")[0])
        facts: dict[str, Any] = {"photographs": not is_glyphs(self.source) and Path(self.source).suffix != ".npz"}
        facts |= {"untrained": self.row.untrained, "views": self.views, **_flat(settings), "method": methods}
        said = [
            f"{word}: {paper.differences[word]['says']}"
            for word in origin["differs"]
            if word not in self.table.untold and _is_true(paper.differences[word].get("only", {}), facts)
        ]
        chosen = [] if self.row.untrained else self._open(origin)
        return said + ([f"open in {paper.authors}, chosen by the recipe: {', '.join(chosen)}"] if chosen else [])

    def _open(self, origin: Mapping[str, Any]) -> list[str]:
        """Settings that the paper leaves open, with what the recipe chose; not what was chosen elsewhere."""
        partly = origin.get("partly_open", {})
        elsewhere = {*self.row.set, *self.on_glyphs, *self.overrides}
        tables = {name: table for name, table in recipe_tables(self.row.recipe).items() if name != "origin"}
        if self.row.instead:
            del tables["method"]
        return [
            f"{name} = {json.dumps(value)}" + (f" ({partly[name]})" if name in partly else "")
            for table in tables.values()
            for name, value in table.items()
            if (name in origin["open"] or name in partly) and name not in elsewhere
        ]


def make_plans(table: PaperTable, data: Mapping[str, str], overrides: Mapping[str, Any], out: Path) -> list[Plan]:
    """A plan for every row; of a figure, those of the datasets that are here, or else of the first one, on glyphs.

    Args:
        data: sources by the name of the dataset they stand for.
        overrides: settings of the user's, for the rows whose method has them.
        out: a folder for glyphs that have to be split anew.
    """
    plans = [Plan(table, row, _as_in_the_paper(table, row)) for row in table.rows]
    _check(table, data, overrides, {plan.paper.method for plan in plans})
    plans = [replace(plan, source=_source(plan, data, overrides)) for plan in plans]
    if table.draw:
        first = [replace(plan, source=table.glyphs) for plan in plans if plan.dataset == plans[0].dataset]
        plans = [plan for plan in plans if plan.source] or first
    return [_with_settings(plan, overrides, out) for plan in plans]


def datasets(table: PaperTable) -> dict[str, bool]:
    """The datasets of a table and whether they are here.

    >>> from nearkin.experiments.papers import read_table
    >>> list(datasets(read_table("rank", "table-1")))
    ['cub200', 'cars196', 'sop']
    """
    plans = [Plan(table, row, _base(table, row)) for row in table.rows]
    return {plan.dataset: bool(_source(plan, {}, {})) for plan in plans}


def is_glyphs(source: str) -> bool:
    return is_dataset_name(source) and not is_benchmark(source)


def _check(table: PaperTable, data: Mapping[str, str], overrides: Mapping[str, Any], methods: Iterable[str]) -> None:
    known = datasets(table)
    for name, source in data.items():
        if name not in known:
            raise unknown_name(f"dataset of {table.name}", name, known)
        if not _is_here(source, overrides):
            raise UserError(f"{source}, which is to stand for {name}, was not found; see `nearkin datasets`")
    if "source" in overrides:
        raise UserError(f"other data are given by the name that they stand for, one of {', '.join(known)}: data={{…}}")
    for setting, value in overrides.items():
        if not any(knows(method, setting) for method in methods):
            by_section(min(methods), {setting: value})  # says which settings there are


def _as_in_the_paper(table: PaperTable, row: Row) -> Settings:
    settings = _base(table, row)
    if row.instead:
        settings = replace(settings, method=row.instead, method_settings={})
    return settings.changed(**by_section(settings.method, row.set)) if row.set else settings


def _base(table: PaperTable, row: Row) -> Settings:
    return read_recipe(row.recipe) if row.recipe else Settings.from_tables(table.base, table.name)


def _source(plan: Plan, data: Mapping[str, str], overrides: Mapping[str, Any]) -> str:
    """What is trained on; empty where that is not here."""
    source = data.get(plan.dataset, plan.paper.data.source)
    return absolute(source) if plan.dataset in data or _is_here(source, overrides) else ""


def _is_here(source: str, overrides: Mapping[str, Any]) -> bool:
    if is_benchmark(source):
        root = overrides.get("root")
        return find(source, Path(root) if root else None) is not None
    return is_dataset_name(source) or Path(source).expanduser().exists()


def _with_settings(plan: Plan, overrides: Mapping[str, Any], out: Path) -> Plan:
    """The plan with the settings of its run, or with why there can be none."""
    table, paper = plan.table, plan.paper
    if plan.row.not_run:
        return replace(plan, source="", problem=f"not run: {plan.row.not_run}")
    if not plan.source:
        name = plan.dataset
        advice = f"`nearkin datasets` says where to get {name}, or name other data with --data {name}=SOURCE"
        return replace(plan, problem=f"not found: {advice}")
    own = {name: value for name, value in overrides.items() if knows(paper.method, name)}
    source = plan.source
    if is_glyphs(source) and table.new_examples:
        file = out / f"known-{re.sub(r'[^a-z0-9]+', '-', source)}-{table.new_examples}.npz"
        source = str(known_classes(file, source, table.new_examples).absolute())
    changed = {"keep": paper.training.keep or "best-on-test", **plan.on_glyphs, **own, "source": source}
    settings = paper.changed(**by_section(paper.method, changed))
    check(settings.training)
    settings.make_method()
    if is_glyphs(plan.source) and "batch_size" not in own and not _can_be_filled(settings):
        settings = settings.changed(training={"batch_size": 0})  # the method's usual ones, which shrink to the data
    return replace(plan, settings=settings, overrides=tuple(own))


def _can_be_filled(settings: Settings) -> bool:
    """Whether the data have enough items for a batch of the size that is set, if one is."""
    size = settings.training.batch_size
    if not size:
        return True
    try:
        labels = load_splits(settings.data, settings.training.seed).train.labels
        settings.make_method().sampler(labels, size, seed=0)
    except UserError:
        return False
    return size <= len(labels)


def _origin(row: Row) -> dict[str, Any]:
    return recipe_tables(row.recipe)["origin"]


def _flat(settings: Settings) -> dict[str, Any]:
    return {name: value for table in settings.to_tables().values() for name, value in table.items()}


def _is_true(only: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    """Whether all of the wanted values are there; of a fact with several values, one must be it."""
    return all(
        wanted in facts[name] if isinstance(facts[name], tuple) else facts[name] == wanted
        for name, wanted in only.items()
    )


def _shown(name: str, value: Any) -> str:
    """A value, or in words what one that stands for another means."""
    if value == "":
        return "the usual"
    return str(value) if value else PLACEHOLDERS.get(name, str(value))
