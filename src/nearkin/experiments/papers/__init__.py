"""The tables and figures of the papers as data: one TOML file each, with the paper's numbers exactly as printed.

A row names what it is trained with: a recipe, or a recipe's data, network and optimiser with another method
(``instead``), and what is set differently (``set``). What a group of rows has in common is written once. Each paper's
``paper.toml`` says what holds for all of its tables: title, how it chose its models, what a recipe does otherwise.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from nearkin.errors import unknown_name


@dataclass(frozen=True)
class Row:
    """One line of a table, or one run of a figure."""

    method: str  # what the paper calls it
    paper: dict[str, float | None]  # by score, the paper's number in percent; None where it gives none
    recipe: str = ""  # what it is trained with; empty: the base
    base: dict[str, Any] = field(default_factory=dict)  # settings without a recipe, laid out as a config.toml
    instead: str = ""  # another method than the recipe's, with nearkin's own settings for it
    set: dict[str, Any] = field(default_factory=dict)  # settings that differ from the recipe's because the paper's do
    on_glyphs: dict[str, Any] = field(default_factory=dict)  # further ones where glyphs stand for the paper's data
    test_per_class: int = 0  # of such glyphs, how many of each class are tested on; 0: other classes are
    untrained: bool = False  # whether the backbone alone is measured
    read: str = ""  # the method whose read-out is wanted, its settings after a colon; empty: the trained one's
    prefix: str = ""  # of the scores' names, such as "with_sc_"
    test: str = ""  # a benchmark whose test split is measured instead of the trained one's
    views: int = 1  # random views of an item that are averaged at test, where images are augmented
    notes: Sequence[str] = ()  # what is to be known about this row, in sentences


@dataclass(frozen=True)
class PaperTable:
    """A table or a figure."""

    name: str  # of the file, "rank/table-1"
    title: str  # the paper's authors, year and title
    number: str  # as the paper counts, "Table I"
    caption: str  # what it shows, in nearkin's words
    rows: tuple[Row, ...]  # in the paper's order
    decimals: int = 1  # of the paper's numbers
    draw: str = ""  # how a figure is drawn, as `make_panels` names it; empty: it is a table

    @property
    def columns(self) -> list[str]:
        """All scores, in the order in which they first come."""
        return list(dict.fromkeys(column for row in self.rows for column in row.paper))


@dataclass(frozen=True)
class Paper:
    """What holds for all tables of a paper."""

    title: str  # authors, year and title
    authors: str  # in short, with the year
    chose: str  # how the paper chose the models that it reports
    differences: dict[str, dict[str, Any]]  # by a word, what recipes do otherwise, and with which settings
    notes: dict[str, str]  # sentences by name that the rows of several tables share


def known_papers() -> list[str]:
    """The papers' names.

    >>> known_papers()
    ['divide-and-conquer', 'facility-location', 'magnet', 'rank', 'spectral']
    """
    return sorted(folder.name for folder in files(__name__).iterdir() if folder.joinpath("paper.toml").is_file())


def known_tables(paper: str) -> list[str]:
    """The tables and figures of a paper.

    >>> known_tables("facility-location")
    ['table-1', 'table-2', 'table-3']
    """
    if paper not in known_papers():
        raise unknown_name("paper", paper, known_papers())
    names = (file.name.removesuffix(".toml") for file in files(__name__).joinpath(paper).iterdir())
    return sorted(name for name in names if name != "paper")


def read_paper(paper: str) -> Paper:
    """What holds for all tables of a paper.

    >>> read_paper("rank").authors
    'Schall et al. 2019'
    """
    return Paper(**paper_file(f"{paper}/paper"))


def read_table(paper: str, table: str) -> PaperTable:
    """A table or figure.

    >>> read_table("rank", "table-1").number
    'Table I'
    """
    if table not in known_tables(paper):
        raise unknown_name(f"table or figure of {paper}", table, known_tables(paper))
    values = dict(paper_file(f"{paper}/{table}"))
    notes = read_paper(paper).notes | values.pop("notes", {})
    rows = tuple(_row({**group, **row}, notes) for group in values.pop("groups") for row in group["rows"])
    return PaperTable(name=f"{paper}/{table}", title=read_paper(paper).title, rows=rows, **values)


@cache
def paper_file(name: str) -> dict[str, Any]:
    """One of the files as it is written; "glyphs" is what is set where glyphs stand for photographs.

    >>> paper_file("glyphs")["backbone"]
    'small'
    """
    return tomllib.loads(files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8"))


def _row(values: dict[str, Any], notes: dict[str, str]) -> Row:
    del values["rows"]  # of its group
    columns = values.pop("columns")
    numbers = values.pop("paper", ["-"] * len(columns))
    paper = {column: None if n == "-" else float(n) for column, n in zip(columns, numbers, strict=True)}
    return Row(paper=paper, notes=[notes[name] for name in values.pop("notes", ())], **values)
