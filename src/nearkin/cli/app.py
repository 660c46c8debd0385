"""The `nearkin` command itself, and the options that several of its commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Deep metric learning that looks at the whole embedding space: train, measure, use.",
)

Model = Annotated[
    str, typer.Argument(help="A run folder, a model folder, or a pretrained network by name: timm:resnet50.")
]
NetworkWeights = Annotated[
    str | None, typer.Option("--weights", help="Of a network by name: a file instead of the ImageNet weights.")
]
CountCheck = typer.Option("--count-check/--no-count-check", help="Whether a benchmark must be complete.")
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any other setting of config.toml; may be repeated."),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        from nearkin import __version__

        typer.echo(f"nearkin {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the full traceback of an error.")] = False,
    files: Annotated[
        list[Path] | None,
        typer.Option("--import", metavar="FILE", help="A Python file with methods, losses, metrics of your own."),
    ] = None,
) -> None:
    """Before a command runs; --debug is taken care of in `main`."""
    if files:
        from nearkin.plugins import import_files

        import_files(files)
