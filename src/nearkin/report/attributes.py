"""The concentration of attributes as a table for the terminal, narrow enough for eighty characters."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Table


def print_attributes(shares: Mapping[str, Mapping[str, float]]) -> None:
    """One row for each attribute, one column for each neighbourhood size and for chance; shares[size][attribute]."""
    table = Table(
        title="share of the 1, 2, … nearest neighbours with the same attribute",
        title_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
    )
    table.add_column("", overflow="fold")
    for size in shares:
        table.add_column(size, justify="right", no_wrap=True, min_width=5)
    for name in shares["chance"]:
        table.add_row(escape(name), *(f"{column[name]:.3f}" if name in column else "" for column in shares.values()))
    Console().print(table)
