"""What nearkin knows by name, for the terminal: each list loads what it tells about, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

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


def print_datasets(root: Path | None) -> None:
    from nearkin.data.benchmarks import benchmarks, find

    table = Table(show_lines=True)
    for heading in ("dataset", "classes", "images", "what it is, where to get it", "found"):
        table.add_column(heading, overflow="fold")
    table.add_row(
        "glyphs",
        "400",
        "5,200 train\n5,200 test",
        "characters in 16 typefaces, drawn on first use",
        "built in",
    )
    for benchmark in benchmarks():
        folder = find(benchmark.name, root)
        counts = "\n".join(f"{count:,} {part}" for part, count in benchmark.counts.items())
        about = f"{benchmark.description}\n{benchmark.source}\n{benchmark.layout}"
        table.add_row(benchmark.name, f"{benchmark.classes:,}", counts, about, str(folder) if folder else "no")
    Console().print(table)


def print_methods() -> None:
    from nearkin.methods import known_methods, make_method

    table = Table(show_lines=True)
    table.add_column("method", no_wrap=True)
    table.add_column("what it does", overflow="fold")
    table.add_column("settings", no_wrap=True)
    for known in known_methods():
        method = make_method(known.name)
        lines = {
            "paper": method.paper,
            "batches": method.batches,
            "minimises": method.minimises,
            "looks at the whole space": method.refresh_every or "no",
            "at test time": method.readout,
        }
        about = "\n".join(f"[dim]{name}:[/dim] {value}" for name, value in lines.items())
        settings = "\n".join(f"{name}={value}" for name, value in method.settings().items())
        table.add_row(method.name, about, settings)
    Console().print(table)
