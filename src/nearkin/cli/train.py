"""Commands that train: train, resume, demo."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearkin.cli.app import Set, app
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
        typer.Argument(help="A folder with one folder per class, a .csv, a .npz, or a dataset's name."),
    ] = None,
    method: Annotated[str | None, typer.Option(help="See `nearkin methods`. Default: rank.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder. Default: a new one under runs/.")] = None,
    config: Annotated[Path | None, typer.Option(help="Repeat a run from its config.toml.")] = None,
    recipe: Annotated[str | None, typer.Option(help="A paper's or tuned settings; see `nearkin recipes`.")] = None,
    options: TrainingOptions,
    validation: Annotated[
        float | None,
        typer.Option(help="Share of training classes held out to choose the best epoch; 0: none. Default: a tenth."),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(help="last, best-on-validation, or best-on-test (as in papers: chooses on what it reports)."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed.")] = None,
    fit_all: Annotated[
        bool,
        typer.Option("--fit-all", help="Then train once more on all classes, for as many epochs as were best."),
    ] = False,
    settings: Set = None,
) -> None:
    """Train an embedding; stop with Ctrl-C and continue with `nearkin resume`.

    Example: nearkin train photos/ --backbone resnet50 --freeze-backbone
    """
    own = {"validation": validation, "keep": keep, "seed": seed}
    given: dict[str, Any] = {**options, **{name: value for name, value in own.items() if value is not None}}
    if data is None and config is None and recipe is None:
        raise typer.BadParameter("give data to train on (a folder, .csv, .npz or name), --recipe or --config")
    from nearkin import api
    from nearkin.fields import parse_assignment

    given |= dict(map(parse_assignment, settings or []))
    _print_run(api.train(data, method, out, config, recipe, fit_all, **given))


@app.command(rich_help_panel="Train")
def resume(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    epochs: Annotated[int | None, typer.Option(help="Train on to this number of epochs.")] = None,
) -> None:
    """Continue a run from its last checkpoint, to the same weights as if it had never stopped.

    Example: nearkin resume runs/photos-rank
    """
    from nearkin import api

    _print_run(api.resume(run, epochs))


@app.command(rich_help_panel="Train")
def demo(
    out: Annotated[Path, typer.Option(help="Folder to write; an earlier demo there is replaced.")] = Path("runs/demo"),
    epochs: Annotated[int, typer.Option(help="Passes over the training half.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of data order and weights.")] = 0,
    data: Annotated[str, typer.Option(help="The glyphs, in another size: glyphs:classes=40,per_class=10")] = "glyphs",
) -> None:
    """Train on the embedded glyphs, measure on classes never seen, save the model, draw two pictures."""
    from nearkin import api

    made = api.demo(out, epochs, seed, data)
    show(made.table)
    say(made.summary)


def _print_run(run: Run) -> None:
    """The scores; of a run on all classes, those of the run that measured its settings."""
    from nearkin.evaluation.result import score_table
    from nearkin.progress import speaks
    from nearkin.training import Run

    if not speaks():
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
