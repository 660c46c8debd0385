"""A plain list for the terminal, apart from the other tables: it loads in no time, because it needs no torch."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table


def print_pairs(name: str, about: str, rows: Mapping[str, str]) -> None:
    """A table of two columns."""
    table = Table()
    table.add_column(name, no_wrap=True)
    table.add_column(about)
    for row in rows.items():
        table.add_row(*row)
    Console().print(table)
