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
from nearkin.experiments.papers import PaperTable, Row, glyph_settings, read_paper
from nearkin.experiments.recipes import read_recipe, recipe_tables
from nearkin.experiments.runs import full_tables
from nearkin.training import Settings
from nearkin.training.optimise import check
from nearkin.training.prepare import absolute, load_splits
from nearkin.training.settings import by_section, knows

MATTER_UNTRAINED = ("backbone", "weights", "image_size", "split")
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
    def on_glyphs(self) -> dict[str, Any]:
        """Settings that are changed because glyphs are small and grey."""
        return glyph_settings() | self.row.on_glyphs if _is_glyphs(self.source) else {}

    @property
    def views(self) -> int:
        """How many views of an item are averaged at test; one where there is nothing random in them."""
        return self.row.views if self.settings and self.settings.data.augment != "none" else 1

    @property
    def folder(self) -> str:
        """The name of the run: rows with the same settings share one, other settings are another run."""
        if self.settings is None:
            return ""
        digest = hashlib.sha256(json.dumps(full_tables(self.settings), sort_keys=True).encode()).hexdigest()
        return f"{self.dataset}-{'backbone' if self.row.untrained else self.settings.method}-{digest[:8]}"

    def differs(self, settings: Settings) -> list[str]:
        """Where a run with these settings differs from the paper, in sentences."""
        sentences = {
            "other data": self.other_data and f"{self.other_data} instead of {self.dataset}",
            "protocol": "" if self.row.untrained else self._protocol(settings.training.keep),
            "settings for glyphs": self._changes(settings, [n for n in self.on_glyphs if n not in self.overrides]),
            "other settings": self._changes(settings, [n for n in self.overrides if n != "keep"]),
        }
        notes = [self.table.notes[note] for note in self.row.notes]
        labelled = [f"{what}: {words}" for what, words in sentences.items() if words]
        return [*labelled, *notes, *(self._recipe_differs(settings) if self.row.recipe else [])]

    def _protocol(self, keep: str) -> str:
        chose = read_paper(self._origin["paper"]).chose if self.row.recipe else "how the paper chose is not said"
        return PROTOCOLS.get(keep, keep) + (f"; {chose}" if keep == "best-on-test" else "")

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
        origin, paper = self._origin, read_paper(self._origin["paper"])
        facts = {name: {value} for name, value in _flat(settings).items()}
        facts["method"] |= {str(settings.method_settings.get("wraps", "")).partition(":")[0]}
        facts["photographs"] = {not _is_glyphs(self.source) and Path(self.source).suffix != ".npz"}
        facts |= {"untrained": {self.row.untrained}, "views": {self.views}}
        said = []
        for word in origin["differs"]:
            difference = paper.differences[word]
            true = all(wanted in facts[name] for name, wanted in difference.get("only", {}).items())
            said += [f"{word}: {difference['says']}"] if true and word not in self.table.untold else []
        chosen = [] if self.row.untrained else self._open()
        return said + ([f"open in {paper.authors}, chosen by the recipe: {', '.join(chosen)}"] if chosen else [])

    def _open(self) -> list[str]:
        """Settings that the paper leaves open, with what the recipe chose; not what was chosen elsewhere."""
        partly = self._origin.get("partly_open", {})
        names = {*self._origin["open"], *partly} - {*self.row.set, *self.on_glyphs, *self.overrides}
        unused = {"origin", "method"} if self.row.instead else {"origin"}
        return [
            f"{name} = {json.dumps(value)}" + (f" ({partly[name]})" if name in partly else "")
            for section, table in recipe_tables(self.row.recipe).items()
            for name, value in table.items()
            if section not in unused and name in names
        ]

    @property
    def _origin(self) -> dict[str, Any]:
        return recipe_tables(self.row.recipe)["origin"]


def make_plans(table: PaperTable, data: Mapping[str, str], overrides: Mapping[str, Any], out: Path) -> list[Plan]:
    """A plan for every row; of a figure, those of the datasets that are here, or else of the first one, on glyphs.

    Args:
        data: sources by the name of the dataset they stand for.
        overrides: settings of the user's, for the rows whose method has them.
        out: a folder for glyphs that have to be split anew.
    """
    plans = _with_sources(table, data, overrides)
    _check(table, data, overrides, {plan.paper.method for plan in plans})
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
    return {plan.dataset: bool(plan.source) for plan in _with_sources(table, {}, {})}


def _with_sources(table: PaperTable, data: Mapping[str, str], overrides: Mapping[str, Any]) -> list[Plan]:
    """The rows with the paper's settings, as far as the recipes have them, and what can be trained on."""
    plans = []
    for row in table.rows:
        paper = read_recipe(row.recipe) if row.recipe else Settings.from_tables(table.base, table.name)
        if row.instead:
            paper = replace(paper, method=row.instead, method_settings={})
        paper = paper.changed(**by_section(paper.method, row.set)) if row.set else paper
        plan = Plan(table, row, paper)
        source = data.get(plan.dataset, paper.data.source)
        plans.append(replace(plan, source=absolute(source) if _is_here(source, overrides) else ""))
    return plans


def _is_here(source: str, overrides: Mapping[str, Any]) -> bool:
    if is_benchmark(source):
        root = overrides.get("root")
        return find(source, Path(root) if root else None) is not None
    return is_dataset_name(source) or Path(source).expanduser().exists()


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


def _with_settings(plan: Plan, overrides: Mapping[str, Any], out: Path) -> Plan:
    """The plan with the settings of its run, or with why there can be none."""
    table, paper, source, name = plan.table, plan.paper, plan.source, plan.dataset
    if plan.row.not_run:
        return replace(plan, source="", problem=f"not run: {plan.row.not_run}")
    if not source:
        return replace(
            plan, problem=f"not found: `nearkin datasets` says where to get {name}; or give other data for it"
        )
    own = {name: value for name, value in overrides.items() if knows(paper.method, name)}
    if _is_glyphs(source) and table.new_examples:
        file = out / f"known-{re.sub(r'[^a-z0-9]+', '-', source)}-{table.new_examples}.npz"
        source = str(known_classes(file, source, table.new_examples).absolute())
    changed = {"keep": paper.training.keep or "best-on-test", **plan.on_glyphs, **own, "source": source}
    settings = paper.changed(**by_section(paper.method, changed))
    check(settings.training)
    settings.make_method()
    if _is_glyphs(plan.source) and "batch_size" not in own and not _can_be_filled(settings):
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


def _is_glyphs(source: str) -> bool:
    return is_dataset_name(source) and not is_benchmark(source)


def _flat(settings: Settings) -> dict[str, Any]:
    """All settings by name; ``method`` is the method's."""
    tables = full_tables(settings)
    return {"method": settings.method} | {name: value for table in tables.values() for name, value in table.items()}


def _shown(name: str, value: Any) -> str:
    """A value, or in words what one that stands for another means."""
    if value == "":
        return "the usual"
    return str(value) if value else PLACEHOLDERS.get(name, str(value))
