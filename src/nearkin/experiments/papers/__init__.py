"""The tables and figures of the papers as data: one TOML file each, with the paper's numbers exactly as printed.

A row names what it is trained with: a recipe, or a recipe's data, network and optimiser with another method
(``instead``), and what is set differently (``set``). What a group of rows has in common is written once. Each paper's
``paper.toml`` says what holds for all of its tables: title, how it chose its models, what a recipe does otherwise.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from nearkin.errors import unknown_name


@dataclass(frozen=True)
class Row:
    """One line of a table, or one run of a figure.

    Attributes:
        method: what the paper calls it.
        columns: names of scores.
        paper: the paper's number for each column, in percent; None where it gives none.
        recipe: what it is trained with; empty: the table's own ``base``.
        instead: another method than the recipe's, with nearkin's own settings for it.
        set: settings that differ from the recipe's because the paper's do.
        on_glyphs: further settings where glyphs stand for the paper's data.
        read: the method whose read-out is wanted, its settings after a colon; empty: the trained one's.
        prefix: of the scores' names, such as ``with_sc_``.
        test: a benchmark whose test split is measured instead of the trained one's.
        views: random views of an item that are averaged at test, where images are augmented.
        panel: the panel of a figure that it belongs to.
        notes: what is to be known about this row, as names in the table's notes.
        untrained: whether the backbone alone is measured.
        not_run: why it cannot be trained here; empty: it can.
    """

    method: str
    columns: tuple[str, ...]
    paper: tuple[float | None, ...]
    recipe: str = ""
    instead: str = ""
    set: dict[str, Any] = field(default_factory=dict)
    on_glyphs: dict[str, Any] = field(default_factory=dict)
    read: str = ""
    prefix: str = ""
    test: str = ""
    views: int = 1
    panel: str = ""
    notes: tuple[str, ...] = ()
    untrained: bool = False
    not_run: str = ""


@dataclass(frozen=True)
class PaperTable:
    """A table or a figure.

    Attributes:
        name: of the file, "rank/table-1".
        title: the paper's authors, year and title.
        number: as the paper counts, "Table I".
        caption: what it shows, in nearkin's words.
        rows: in the paper's order.
        decimals: of the paper's numbers.
        draw: how a figure is drawn, as `draw` names it; empty: it is a table.
        swept: the setting in which the runs of a figure differ.
        base: settings of rows without a recipe, laid out as a config.toml.
        glyphs: which glyphs stand for absent data of a figure.
        new_examples: of each class, how many glyphs are tested on; 0: the second half of the classes.
        untold: differences of the recipes that the rows of this table do not have.
        notes: sentences by name.
    """

    name: str
    title: str
    number: str
    caption: str
    rows: tuple[Row, ...]
    decimals: int = 1
    draw: str = ""
    swept: str = ""
    base: dict[str, Any] = field(default_factory=dict)
    glyphs: str = "glyphs"
    new_examples: int = 0
    untold: tuple[str, ...] = ()
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        """All scores, in the order in which they first come."""
        return list(dict.fromkeys(column for row in self.rows for column in row.columns))


@dataclass(frozen=True)
class Paper:
    """What holds for all tables of a paper.

    Attributes:
        title: authors, year and title.
        authors: in short, with the year.
        chose: how the paper chose the models that it reports.
        differences: by a word, what the recipes do otherwise (``says``), and of which settings that is true (``only``).
        notes: sentences by name that the rows of several tables share.
    """

    title: str
    authors: str
    chose: str
    differences: dict[str, dict[str, Any]]
    notes: dict[str, str]


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


@cache
def read_paper(paper: str) -> Paper:
    """What holds for all tables of a paper.

    >>> read_paper("rank").authors
    'Schall et al. 2019'
    """
    return Paper(**_read(paper, "paper"))


def read_table(paper: str, table: str) -> PaperTable:
    """A table or figure.

    >>> read_table("rank", "table-1").number
    'Table I'
    """
    if table not in known_tables(paper):
        raise unknown_name(f"table or figure of {paper}", table, known_tables(paper))
    of_paper, values = read_paper(paper), _read(paper, table)
    values["rows"] = tuple(_row(group | row) for group in values.pop("groups") for row in group.pop("rows"))
    values["untold"] = tuple(values.get("untold", ()))
    values["notes"] = of_paper.notes | values.get("notes", {})
    return PaperTable(name=f"{paper}/{table}", title=of_paper.title, **values)


@cache
def glyph_settings() -> dict[str, Any]:
    """What is set where glyphs stand for photographs."""
    return _read("glyphs")


def _row(values: dict[str, Any]) -> Row:
    numbers = values.pop("paper", ["-"] * len(values["columns"]))
    return Row(
        columns=tuple(values.pop("columns")),
        paper=tuple(None if number == "-" else float(number) for number in numbers),
        notes=tuple(values.pop("notes", ())),
        **values,
    )


def _read(*path: str) -> dict[str, Any]:
    return tomllib.loads(files(__name__).joinpath(*path[:-1], f"{path[-1]}.toml").read_text(encoding="utf-8"))
