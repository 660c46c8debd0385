"""The settings and data for every row of a paper's table, and how they differ from the paper's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nearkin.data.benchmarks import find, is_benchmark
from nearkin.data.sources import is_dataset_name
from nearkin.errors import UserError, unknown_name
from nearkin.experiments.papers import PaperTable, Row, paper_file, read_paper
from nearkin.experiments.recipes import read_recipe, recipe_tables
from nearkin.experiments.runs import full_tables
from nearkin.training import Settings
from nearkin.training.model_selection import KEEP
from nearkin.training.optimise import check
from nearkin.training.prepare import absolute
from nearkin.training.settings import by_section, knows

REPORTED_SEPARATELY = ("source", "keep")  # settings with their own sentence


@dataclass(frozen=True)
class Plan:
    """The plan of one row.

    Attributes:
        paper: the paper's settings, as in the recipe.
        settings: the run's settings; None if its data are missing.
    """

    row: Row
    paper: Settings
    settings: Settings | None

    @property
    def dataset(self) -> str:
        """The name of the paper's dataset."""
        return _name_of_data(self.paper)

    @property
    def other_data(self) -> str:
        """The replacement for the paper's data; empty: none."""
        source = self.settings.data.source if self.settings else ""
        return source if source != absolute(self.paper.data.source) else ""

    @property
    def folder(self) -> str:
        """The name of the run folder; rows with the same settings share a run."""
        if self.settings is None:
            return ""
        digest = hashlib.sha256(json.dumps(full_tables(self.settings), sort_keys=True).encode()).hexdigest()
        return f"{self.dataset}-{'backbone' if self.row.untrained else self.settings.method}-{digest[:8]}"

    def differs(self, run: Settings) -> list[str]:
        """How a run differs from the paper: data, settings, model selection and recipe, in sentences.

        Args:
            run: the plan's settings with all defaults filled in.
        """
        assert self.settings is not None
        sentences = [f"other data: {self.other_data} instead of {self.dataset}"] if self.other_data else []
        paper, asked, here = _flat(self.paper), _flat(self.settings), _flat(run)
        changed = [
            name for name in asked if paper[name] not in (asked[name], here[name]) and name not in REPORTED_SEPARATELY
        ]
        changes = ", ".join(f"{name} = {here[name]} instead of {paper[name]}" for name in changed)
        sentences += [f"settings: {changes}"] if changes else []
        sentences += self.row.notes
        return sentences if self.row.untrained else [*sentences, *self._protocol_and_recipe(here)]

    def _protocol_and_recipe(self, here: Mapping[str, Any]) -> list[str]:
        """How the model was chosen, where the recipe differs, and what the paper does not state."""
        protocol = f"protocol: {KEEP[here['keep']][1].partition(': ')[2]}"
        if not self.row.recipe:
            return [protocol]
        origin, recipe = recipe_tables(self.row.recipe)["origin"], _flat(read_recipe(self.row.recipe))
        paper = read_paper(origin["paper"])
        sentences = [f"{protocol}; {paper.chose}"]
        for word in origin["differs"]:
            only = paper.differences[word].get("only", {})
            if all(here.get(name) == value for name, value in only.items()):
                sentences.append(f"{word}: {paper.differences[word]['says']}")
        not_stated = dict.fromkeys(origin["open"], "") | origin.get("partly_open", {})
        chosen = [
            f"{name} = {recipe[name]}" + (f" ({what})" if what else "")
            for name, what in not_stated.items()
            if here.get(name) == recipe[name]
        ]
        if chosen:
            sentences.append(f"not stated by {paper.authors}, chosen by the recipe: {', '.join(chosen)}")
        return sentences


def make_plans(table: PaperTable, data: Mapping[str, str], overrides: Mapping[str, Any]) -> list[Plan]:
    """The plans of all rows of a table.

    Args:
        data: replacement sources by the name of the dataset.
        overrides: the user's settings, for the rows whose method has them.
    """
    papers = [_paper_settings(row) for row in table.rows]
    _check(table, data, overrides, {paper.method for paper in papers})
    plans = []
    for row, paper in zip(table.rows, papers, strict=True):
        source = data.get(_name_of_data(paper), paper.data.source)
        here = _is_here(source, overrides.get("root"))
        plans.append(Plan(row, paper, _settings_here(row, paper, absolute(source), overrides) if here else None))
    return plans


def datasets(table: PaperTable) -> dict[str, bool]:
    """The datasets of a table, and whether each was found.

    >>> from nearkin.experiments.papers import read_table
    >>> list(datasets(read_table("rank", "table-1")))
    ['cub200', 'cars196', 'sop']
    """
    papers = map(_paper_settings, table.rows)
    return {_name_of_data(paper): _is_here(paper.data.source) for paper in papers}


def _paper_settings(row: Row) -> Settings:
    """The paper's settings, as in the recipe."""
    settings = read_recipe(row.recipe) if row.recipe else Settings.from_tables(row.base)
    if row.instead:
        settings = replace(settings, method=row.instead, method_settings={})
    return settings.changed(**by_section(settings.method, row.set))


def _name_of_data(settings: Settings) -> str:
    """The dataset's name, such as ``mnist`` for ``./mnist.npz`` and ``vehicleid`` for ``vehicleid:large``."""
    return Path(settings.data.source.partition(":")[0]).stem


def _is_here(source: str, root: str | None = None) -> bool:
    if is_benchmark(source):
        return find(source, Path(root) if root else None) is not None
    return is_dataset_name(source) or Path(source).expanduser().exists()


def _check(table: PaperTable, data: Mapping[str, str], overrides: Mapping[str, Any], methods: Iterable[str]) -> None:
    known = datasets(table)
    for name, source in data.items():
        if name not in known:
            raise unknown_name(f"{table.name}: dataset", name, known)
        if not _is_here(source, overrides.get("root")):
            raise UserError(f"{source}, the replacement for {name}, was not found; see `nearkin datasets`")
    if "source" in overrides:
        raise UserError(f"source does not say which dataset to replace; name one of {', '.join(known)} with data=...")
    for setting, value in overrides.items():
        if not any(knows(method, setting) for method in methods):
            by_section(min(methods), {setting: value})  # raises with the known settings


def _settings_here(row: Row, paper: Settings, source: str, overrides: Mapping[str, Any]) -> Settings:
    """The settings of the run: the paper's, changed for the source, for glyphs, and by the user."""
    on_glyphs: dict[str, Any] = {}
    name, _, options = source.partition(":")
    if name == "glyphs":
        on_glyphs = paper_file("glyphs") | row.on_glyphs
        if row.test_per_class:
            source = f"glyphs:test_per_class={row.test_per_class},{options}".rstrip(",")
    own = {name: value for name, value in overrides.items() if knows(paper.method, name)}
    changed = {"keep": paper.training.keep or "best-on-test", **on_glyphs, **own, "source": source}
    settings = paper.changed(**by_section(paper.method, changed))
    check(settings.training)
    settings.make_method()
    return settings


def _flat(settings: Settings) -> dict[str, Any]:
    """All settings in one dictionary; ``method`` is the method's name."""
    tables = full_tables(settings)
    return {"method": settings.method} | {name: value for table in tables.values() for name, value in table.items()}
