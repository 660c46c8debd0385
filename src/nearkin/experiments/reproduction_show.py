"""Reproductions for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from nearkin.errors import UserError
from nearkin.experiments.papers import known_papers, known_parts, read_part
from nearkin.experiments.reproduction import reproduce, usual_folder
from nearkin.experiments.reproduction_plan import Wishes, datasets
from nearkin.experiments.reproduction_result import ReproductionResult
from nearkin.fields import parse_assignment

WORDS = {"method": 12, "data": 10, "": 5}  # how narrow columns of words may become


def print_parts(paper: str | None = None, wishes: bool = False) -> None:
    """The tables and figures that can be run, of one paper or of all, with the data they need; wishes are for one."""
    if wishes:
        name = paper or "rank"
        raise UserError(f"name the part that is to be run, such as `nearkin reproduce {name} {known_parts(name)[-1]}`")
    table = Table(show_lines=True)
    for title in ("paper", "part", "what it shows", "rows", "data"):
        table.add_column(title, no_wrap=title in ("paper", "part"), justify="right" if title == "rows" else "left")
    for each in [paper] if paper else known_papers():
        for name in known_parts(each):
            part = read_part(each, name)
            data = "\n".join(f"{source}: {'found' if here else 'not found'}" for source, here in datasets(part).items())
            table.add_row(each, name, part.caption, str(len(part.rows)), data)
    Console().print(table)


def print_reproduced(paper: str, name: str, out: Path | None, data: Sequence[str], settings: Sequence[str]) -> None:
    """Reproduces a part and prints it; data as ``cub200=glyphs``, settings as ``epochs=5``."""
    out = out or usual_folder(paper, name)
    wishes = Wishes(dict(map(parse_assignment, settings)), dict(map(_dataset_and_source, data)))
    found = reproduce(paper, name, out, wishes)
    print_reproduction(found)
    files = ", ".join(file.name for file in sorted(out.glob(f"{name}.*")))
    Console(highlight=False).print(f"also in {out}: {files}")
    if found.nothing_came_out:
        raise UserError(found.nothing_came_out)


def print_reproduction(found: ReproductionResult) -> None:
    """The table, and below it when and how our rows were made and in what they differ from the paper's."""
    console = Console(highlight=False)
    console.print(f"{found.title}\n{found.legend}", markup=False)
    # Without lines between columns, and with names of scores in several lines, ten columns fit into 80 characters.
    table = Table(box=SIMPLE_HEAD, padding=0, show_edge=False)
    for title in found.headings:
        if title in WORDS:
            table.add_column(title, min_width=WORDS[title], overflow="fold")
        elif title == "differs in":
            table.add_column(title, width=8)
        else:
            table.add_column(title.replace("@", "\n@").replace(" ", "\n"), justify="right", no_wrap=True)
    for row in found.rows():
        table.add_row(*row, end_section=row[2] == "here")
    console.print(table)
    console.print(found.origin, markup=False, soft_wrap=True)  # to be copied whole
    for number, sentence in enumerate(found.differences(), 1):
        console.print(f"{number}. {sentence}", markup=False)


def _dataset_and_source(text: str) -> tuple[str, str]:
    name, equals, source = text.partition("=")
    if not equals:
        raise UserError(f"'{text}' does not say which data to take; write --data {text}=SOURCE, such as {text}=glyphs")
    return name.strip(), source.strip()
