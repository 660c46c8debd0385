"""Commands that train: train, resume, demo."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearkin.cli.app import Set, app
from nearkin.cli.checks import existing_data
from nearkin.cli.options import TrainingOptions, with_training_options
from nearkin.cli.printing import say, show

if TYPE_CHECKING:
    from nearkin.training import Run


@app.command(rich_help_panel="Train")
@with_training_options
def train(
    *,
    data: Annotated[
        str | None,
        typer.Argument(
            callback=existing_data, help="Folder with one subfolder per class, .csv or .npz file, or dataset name."
        ),
    ] = None,
    method: Annotated[str | None, typer.Option(help="Training method; see `nearkin methods`. Default: rank.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder. Default: a new one in runs/.")] = None,
    config: Annotated[Path | None, typer.Option(help="Repeat a run from its config.toml.")] = None,
    recipe: Annotated[str | None, typer.Option(help="Published or tuned settings; see `nearkin recipes`.")] = None,
    options: TrainingOptions,
    validation: Annotated[
        float | None,
        typer.Option(
            help="Fraction of training classes held out to choose the best epoch; 0 for none. "
            "Default: 0.1; up to 0.2 if there are few classes."
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            help="Model to keep: last, best-on-validation or best-on-test (optimistic, but common in papers)."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed.")] = None,
    fit_all: Annotated[
        bool,
        typer.Option("--fit-all", help="Afterwards, train again on all classes, for the best number of epochs."),
    ] = False,
    settings: Set = None,
) -> None:
    """Train an embedding model.

    Press Ctrl-C to stop; `nearkin resume` continues the run.

    Example: nearkin train photos/ --backbone resnet50 --freeze-backbone
    """
    optional = {"validation": validation, "keep": keep, "seed": seed}
    given: dict[str, Any] = {**options, **{name: value for name, value in optional.items() if value is not None}}
    if data is None and config is None and recipe is None:
        raise typer.BadParameter(
            "no data given; name a folder, a .csv or .npz file or a dataset, or use --recipe or --config"
        )
    from nearkin import api
    from nearkin.fields import parse_assignment

    given |= dict(map(parse_assignment, settings or []))
    _print_run(api.train(data, method, out, config, recipe, fit_all, **given))


@app.command(rich_help_panel="Train")
def resume(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    epochs: Annotated[int | None, typer.Option(help="New total number of epochs. Default: as before.")] = None,
) -> None:
    """Continue a run from its last checkpoint.

    It ends with the same weights as if it had never stopped.

    Example: nearkin resume runs/photos-rank
    """
    from nearkin import api

    _print_run(api.resume(run, epochs))


@app.command(rich_help_panel="Train")
def demo(
    out: Annotated[Path, typer.Option(help="Output folder. An earlier demo there is replaced.")] = Path("runs/demo"),
    epochs: Annotated[int, typer.Option(help="Number of epochs.")] = 20,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    data: Annotated[
        str, typer.Option(help="Glyphs in another size, such as glyphs:classes=40,per_class=10.")
    ] = "glyphs",
) -> None:
    """Train on built-in images of characters and evaluate on unseen classes.

    Saves the model, a report and two figures.

    Example: nearkin demo
    """
    from nearkin import api

    made = api.demo(out, epochs, seed, data)
    show(made.table)
    say(made.summary)


def _print_run(run: Run) -> None:
    """Prints the scores; for a run on all classes, those of the run in which its settings were evaluated."""
    from nearkin.evaluation.result import score_table
    from nearkin.progress import is_main_process
    from nearkin.training import Run

    if not is_main_process():
        return
    measured_by = run.scores.get("measured_by")
    measured = Run(run.folder.parent / measured_by) if measured_by else run
    scores = measured.scores
    if scores["after"]:
        titles = {"backbone": "backbone alone", "before": "before training", "after": "after training"}
        columns = {title: scores[name] for name, title in titles.items() if scores[name]}
        show(score_table(columns, "test split"))
    say(f"model: {scores['chosen']}\nrun: {measured.folder}")
    if measured_by:
        say(f"trained on all classes: {run.folder}")
