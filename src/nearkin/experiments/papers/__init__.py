"""The tables and figures of the papers as data: one TOML file each, with the paper's numbers exactly as printed.

A file names what every row was trained with: a recipe, or a recipe's data, network and optimiser with another method
(``instead``), and what is set differently (``set``). Rows that nearkin cannot train say why (``not_run``).
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
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
        recipe: with what it is trained; empty: the part's own ``base``.
        instead: another method than the recipe's, with nearkin's own settings for it.
        set: settings that differ from the recipe's because the paper's do.
        on_glyphs: further settings where glyphs stand for the paper's data.
        read: the method whose read-out is wanted, its settings after a colon; empty: the trained one's.
        prefix: of the scores' names, such as ``with_sc_``.
        test: a benchmark whose test part is measured instead of the trained one's.
        views: random views of an item that are averaged at test, where images are augmented.
        panel: the part of a figure that it belongs to.
        notes: what is to be known about this row, as names in the part's notes.
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
class Part:
    """A table or a figure.

    Attributes:
        name: of the file, "rank/table-1".
        paper: authors, year and title.
        number: as the paper counts, "Table I".
        caption: what it shows, in nearkin's words.
        rows: in the paper's order.
        decimals: of the paper's numbers.
        draw: how a figure is drawn, as `draw` names it; empty: it is a table.
        swept: the setting in which the runs of a figure differ.
        base: settings of rows without a recipe, laid out as a config.toml.
        glyphs: which glyphs stand for absent data of a figure.
        new_examples: of each class, how many glyphs are tested on; 0: the second half of the classes.
        untold: differences of the recipes, by their words, that the rows of this part do not have.
        notes: sentences by name.
    """

    name: str
    paper: str
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


def known_papers() -> list[str]:
    """The papers' names.

    >>> known_papers()
    ['divide-and-conquer', 'facility-location', 'magnet', 'rank', 'spectral']
    """
    folders = (folder for folder in files(__package__).iterdir() if folder.is_dir())
    return sorted(folder.name for folder in folders if any(file.name.endswith(".toml") for file in folder.iterdir()))


def known_parts(paper: str) -> list[str]:
    """The tables and figures of a paper.

    >>> known_parts("facility-location")
    ['table-1', 'table-2', 'table-3']
    """
    if paper not in known_papers():
        raise unknown_name("paper", paper, known_papers())
    names = (file.name for file in files(__package__).joinpath(paper).iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def read_part(paper: str, name: str) -> Part:
    """A table or figure.

    >>> read_part("rank", "table-1").number
    'Table I'
    """
    if name not in known_parts(paper):
        raise unknown_name(f"table or figure of {paper}", name, known_parts(paper))
    text = files(__package__).joinpath(paper, f"{name}.toml").read_text(encoding="utf-8")
    values = tomllib.loads(text)
    rows = tuple(_row(row, group["columns"]) for group in values.pop("groups") for row in group["rows"])
    return Part(name=f"{paper}/{name}", rows=rows, untold=tuple(values.pop("untold", ())), **values)


def _row(values: dict[str, Any], columns: list[str]) -> Row:
    numbers = values.pop("paper", ["-"] * len(columns))
    return Row(
        columns=tuple(columns),
        paper=tuple(None if number == "-" else float(number) for number in numbers),
        notes=tuple(values.pop("notes", ())),
        **values,
    )
