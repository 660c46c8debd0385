"""The tables and figures of the papers as data: one TOML file each, with the paper's numbers exactly as printed.

A row names a recipe, optionally with another method (``instead``) or other settings (``set``). Values that a group of
rows shares are written once. Each paper's ``paper.toml`` has what all of its tables share: the title, how the paper
chose its models, and how recipes differ from it.
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

    method: str  # the paper's name for it
    paper: dict[str, float | None]  # the paper's number in percent by score; None: not in the paper
    recipe: str = ""  # recipe to train with; empty: the base
    base: dict[str, Any] = field(default_factory=dict)  # settings without a recipe, as in a config.toml
    instead: str = ""  # a method that replaces the recipe's, with nearkin's default settings
    set: dict[str, Any] = field(default_factory=dict)  # settings of the paper's row that differ from the recipe's
    on_glyphs: dict[str, Any] = field(default_factory=dict)  # additional settings if glyphs replace the paper's data
    test_per_class: int = 0  # test examples per class of such glyphs; 0: test on other classes
    untrained: bool = False  # whether to evaluate only the backbone
    read: str = ""  # the method whose read-out to use, with its settings after a colon; empty: the trained one
    prefix: str = ""  # prefix of the scores' names, such as "with_sc_"
    test: str = ""  # a benchmark whose test split replaces that of the training data
    views: int = 1  # random views to average per test item, if images are augmented
    notes: Sequence[str] = ()  # remarks on this row, in sentences


@dataclass(frozen=True)
class PaperTable:
    """A table or a figure."""

    name: str  # name of the file, such as "rank/table-1"
    title: str  # the paper's authors, year and title
    number: str  # its number in the paper, such as "Table I"
    caption: str  # what it shows, in our words
    rows: tuple[Row, ...]  # in the paper's order
    decimals: int = 1  # decimals of the paper's numbers
    draw: str = ""  # type of a figure, a key of `paper_figures.KINDS`; empty: a table

    @property
    def columns(self) -> list[str]:
        """All scores, in the order of their first appearance."""
        return list(dict.fromkeys(column for row in self.rows for column in row.paper))


@dataclass(frozen=True)
class Paper:
    """What all tables of a paper share."""

    title: str  # authors, year and title
    authors: str  # abbreviated, with the year
    chose: str  # how the paper chose the models that it reports
    differences: dict[str, dict[str, Any]]  # by keyword, how recipes differ from the paper, and with which settings
    notes: dict[str, str]  # sentences by name, for rows of several tables


def known_papers() -> list[str]:
    """The names of all papers.

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
    """What all tables of a paper share.

    >>> read_paper("rank").authors
    'Schall et al. 2019'
    """
    return Paper(**paper_file(f"{paper}/paper"))


def read_table(paper: str, table: str) -> PaperTable:
    """Reads a table or figure.

    >>> read_table("rank", "table-1").number
    'Table I'
    """
    if table not in known_tables(paper):
        raise unknown_name(f"{paper}: table or figure", table, known_tables(paper))
    values = dict(paper_file(f"{paper}/{table}"))
    notes = read_paper(paper).notes | values.pop("notes", {})
    rows = tuple(_row({**group, **row}, notes) for group in values.pop("groups") for row in group["rows"])
    return PaperTable(name=f"{paper}/{table}", title=read_paper(paper).title, rows=rows, **values)


@cache
def paper_file(name: str) -> dict[str, Any]:
    """The content of a file; "glyphs" has the settings for glyphs as a replacement for photographs.

    >>> paper_file("glyphs")["backbone"]
    'small'
    """
    return tomllib.loads(files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8"))


def _row(values: dict[str, Any], notes: dict[str, str]) -> Row:
    del values["rows"]  # all rows of the group
    columns = values.pop("columns")
    numbers = values.pop("paper", ["-"] * len(columns))
    paper = {column: None if n == "-" else float(n) for column, n in zip(columns, numbers, strict=True)}
    return Row(paper=paper, notes=[notes[name] for name in values.pop("notes", ())], **values)
