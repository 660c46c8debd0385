"""Commands for many runs: compare, reproduce."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nearkin.cli.app import Set, app
from nearkin.cli.checks import existing_data
from nearkin.cli.options import TrainingOptions, with_training_options
from nearkin.cli.printing import say, show


@app.command(rich_help_panel="Experiments")
@with_training_options
def compare(
    *,
    data: Annotated[
        str,
        typer.Argument(callback=existing_data, help="Folder, .csv or .npz file, or dataset name, as for `train`."),
    ],
    methods: Annotated[
        str,
        typer.Option(
            help="Methods, separated by commas, or all. A row can have its own settings: rank,rank:batches=clusters."
        ),
    ] = "all",
    seeds: Annotated[int, typer.Option(help="Number of runs per method, with seeds 0, 1, ...")] = 3,
    protocol: Annotated[
        str,
        typer.Option(help="Where to choose the best epoch: fair (held-out training classes) or paper (test split)."),
    ] = "fair",
    options: TrainingOptions,
    jobs: Annotated[int, typer.Option(help="Number of runs in parallel, each in its own process.")] = 1,
    tune: Annotated[
        int,
        typer.Option(
            help="Number of tuning trials per method, scored on held-out training classes with both protocols. All "
            "train for 1/9 of the epochs, the best third for 1/3, and the best ninth and the defaults for all: about "
            "1/3 of training every trial to the end."
        ),
    ] = 0,
    concatenate: Annotated[
        bool, typer.Option("--concatenate", help="Also evaluate the concatenated embeddings of all seeds.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the runs and the results. Default: runs/compare-DATA.")
    ] = None,
    settings: Set = None,
) -> None:
    """Compare methods on the same data, with the same epochs and seeds.

    The training options apply to every method. Run the same command again to continue: finished runs are reused.

    Example: nearkin compare photos/ --methods rank,triplet --epochs 10
    """
    from nearkin.experiments import compare as compare_methods
    from nearkin.experiments.comparison import default_folder
    from nearkin.fields import parse_assignment

    chosen = {**options, **dict(map(parse_assignment, settings or []))}
    folder = out or default_folder(data)
    result = compare_methods(data, methods, seeds, protocol, jobs, tune, concatenate, folder, **chosen)
    show(result)
    say(f"report: {folder}/comparison.html (also saved as JSON, Markdown and LaTeX)")


@app.command(rich_help_panel="Experiments")
def reproduce(
    paper: Annotated[
        str | None, typer.Argument(help="Paper, such as rank or magnet. Without one, all are listed.")
    ] = None,
    table: Annotated[str | None, typer.Argument(help="Table or figure of the paper, such as table-1.")] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            metavar="NAME=SOURCE",
            help="Replace a dataset of the paper, for example cub200=glyphs. Can be repeated.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Output folder. Default: runs/reproduce-PAPER-TABLE.")] = None,
    listing: Annotated[
        bool, typer.Option("--list", help="List the tables and figures and the data they need, without training.")
    ] = False,
    settings: Set = None,
) -> None:
    """Reproduce a table or figure of a paper and compare the numbers.

    Also lists every setting in which a run differs from the paper.

    Example: nearkin reproduce rank table-1 --data cub200=glyphs --set epochs=5
    """
    from nearkin.errors import UserError
    from nearkin.experiments import reproduce as reproduce_table
    from nearkin.fields import parse_assignment

    if listing or paper is None or table is None:
        if not listing and (data or out or settings):
            raise UserError(f"no table given; name one, such as `nearkin reproduce {_example(paper or 'rank')}`")
        _print_tables(paper)
        return
    given = dict(map(parse_assignment, settings or []))
    result = reproduce_table(paper, table, dict(map(_dataset_and_source, data or [])), out, **given)
    show(result, crop=False)
    say(f"saved in {result.folder}: {', '.join(f.name for f in sorted(result.folder.glob(f'{table}.*')))}")
    attempted = [row for row in result.rows if row.run]
    if attempted and not any(row.here for row in attempted):
        raise UserError(f"every row failed; the first one {attempted[0].problem}")


def _example(paper: str) -> str:
    from nearkin.experiments.papers import known_tables

    return f"{paper} {known_tables(paper)[-1]}"


def _print_tables(paper: str | None) -> None:
    """Prints the tables and figures that can be reproduced, of one paper or of all, and the data they need."""
    from rich.table import Table

    from nearkin.experiments.papers import known_papers, known_tables, read_table
    from nearkin.experiments.reproduction_plan import datasets

    listed = Table(show_lines=True)
    for title in ("paper", "table", "what it shows", "rows", "data"):
        listed.add_column(title, no_wrap=title in ("paper", "table"), justify="right" if title == "rows" else "left")
    for each in [paper] if paper else known_papers():
        for name in known_tables(each):
            table = read_table(each, name)
            data = (f"{source}: {'found' if here else 'not found'}" for source, here in datasets(table).items())
            listed.add_row(each, name, table.caption, str(len(table.rows)), "\n".join(data))
    show(listed)


def _dataset_and_source(text: str) -> tuple[str, str]:
    from nearkin.errors import UserError

    name, equals, source = text.partition("=")
    if not equals:
        raise UserError(f"'{text}' is not of the form NAME=SOURCE; write for example --data cub200=glyphs")
    return name.strip(), source.strip()
