"""Commands that list the names nearkin knows: datasets, recipes, methods."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nearkin.cli.app import app


@app.command()
def datasets(root: Annotated[Path | None, typer.Option(help="Where to look for them.")] = None) -> None:
    """List the datasets known by name, their sizes, and whether they are found."""
    from nearkin.cli.listing import print_datasets

    print_datasets(root)


@app.command()
def recipes() -> None:
    """List the papers' own settings and tuned ones, by dataset and method: train with --recipe NAME."""
    from nearkin.cli.listing import print_pairs
    from nearkin.experiments.recipes import known_recipes, recipe_description

    print_pairs("recipe", "of", {name: recipe_description(name) for name in known_recipes()})


@app.command()
def methods() -> None:
    """List the methods, their batches and their settings."""
    from nearkin.cli.listing import print_methods

    print_methods()
