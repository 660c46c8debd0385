"""Commands that list what can be used by name: methods, datasets, recipes. Each imports only what it lists."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from nearkin.cli.app import ROOT, app
from nearkin.cli.printing import show


@app.command(rich_help_panel="List")
def methods() -> None:
    """List the training methods and their settings.

    Example: nearkin methods
    """
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
            "embeds all training items": method.refresh_every or "no",
            "at test time": method.readout,
        }
        about = Text("\n").join(Text.assemble((f"{name}:", "dim"), f" {value}") for name, value in lines.items())
        settings = "\n".join(f"{name}={value}" for name, value in method.settings().items())
        table.add_row(method.name, about, settings)
    show(table)


@app.command(rich_help_panel="List")
def datasets(root: Annotated[Path | None, typer.Option(help=ROOT)] = None) -> None:
    """List the datasets that can be used by name, and where they are on this machine.

    Example: nearkin datasets --root /data
    """
    from nearkin.data.benchmarks import benchmarks, find

    table = Table(show_lines=True)
    for heading in ("dataset", "classes", "images", "description and source", "found"):
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
        counts = "\n".join(f"{count:,} {split}" for split, count in benchmark.counts.items())
        about = f"{benchmark.description}\n{benchmark.source}\n{benchmark.layout}"
        table.add_row(benchmark.name, f"{benchmark.classes:,}", counts, about, str(folder) if folder else "no")
    show(table)


@app.command(rich_help_panel="List")
def recipes() -> None:
    """List the recipes, with published or tuned settings.

    Example: nearkin train --recipe NAME
    """
    from nearkin.experiments.recipes import known_recipes, recipe_description

    table = Table()
    table.add_column("recipe", no_wrap=True)
    table.add_column("description")
    for name in known_recipes():
        table.add_row(name, recipe_description(name))
    show(table)
