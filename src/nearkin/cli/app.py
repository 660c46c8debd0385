"""The `nearkin` command, and options shared by several of its commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Deep metric learning: train embedding models, evaluate them, and search with them.",
)

ROOT = "Folder that contains the benchmark datasets."
Model = Annotated[
    str, typer.Argument(help="Run folder, model folder, or name of a pretrained network, such as timm:resnet50.")
]
NetworkWeights = Annotated[
    str | None, typer.Option("--weights", help="Weights file for a pretrained network, instead of ImageNet weights.")
]
CountCheck = typer.Option("--count-check/--no-count-check", help="Require a benchmark dataset to be complete.")
Root = Annotated[Path | None, typer.Option(help=ROOT)]
Unreadable = typer.Option(help="What to do with images that cannot be decoded: skip or stop.")
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any other setting in config.toml. Can be repeated."),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        from nearkin import __version__

        typer.echo(f"nearkin {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the full traceback of an error.")] = False,
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--import",
            metavar="FILE",
            help="Python file that registers your own methods, losses, metrics or backbones. Can be repeated.",
        ),
    ] = None,
) -> None:
    """Runs before every command; `main` handles --debug."""
    if files:
        from nearkin.plugins import import_files

        import_files(files)
