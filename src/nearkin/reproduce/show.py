"""Reproductions for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from nearkin.fields import parse_assignment
from nearkin.reproduce.parts import known_papers, known_parts, read_part
from nearkin.reproduce.plan import Wishes, datasets
from nearkin.reproduce.result import Reproduction
from nearkin.reproduce.work import reproduce, usual_folder


def print_parts(paper: str | None = None) -> None:
    """The tables and figures that can be run, of one paper or of all, with the data they need."""
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
    sources = {dataset: str(source) for dataset, source in map(parse_assignment, data)}
    out = out or usual_folder(paper, name)
    print_reproduction(reproduce(paper, name, out, Wishes(dict(map(parse_assignment, settings)), sources)))
    files = ", ".join(file.name for file in sorted(out.glob(f"{name}.*")))
    Console(highlight=False).print(f"also in {out}: {files}")


def print_reproduction(found: Reproduction) -> None:
    """The table, and below it in what our rows differ from the paper's."""
    console = Console(highlight=False)
    table = Table(title=f"{found.title}\n{found.legend}", title_justify="left")
    for title in found.headings:
        words = title in ("method", "data", "", "differs in")
        table.add_column(title, justify="left" if words else "right", overflow="fold")
    for row in found.rows():
        table.add_row(*row, end_section=row[2] == "here")
    console.print(table)
    for number, sentence in enumerate(found.differences(), 1):
        console.print(f"{number}. {sentence}", markup=False)
