"""Commands for one model: evaluate, report, embed, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nearkin.cli.app import CountCheck, Model, NetworkWeights, Root, Unreadable, app
from nearkin.cli.checks import existing_data
from nearkin.cli.printing import say, show


@app.command(rich_help_panel="Evaluate")
def evaluate(
    model: Model,
    data: Annotated[
        str | None, typer.Option(callback=existing_data, help="Data to evaluate on. Default: the run's own data.")
    ] = None,
    weights: NetworkWeights = None,
    split: Annotated[
        str | None,
        typer.Option(help="Split: train, validation, test or all. Default: test for the run's own data, else all."),
    ] = None,
    recall_at: Annotated[str, typer.Option(help="Values of K for Recall@K.")] = "1,2,4,8",
    root: Root = None,
    check_counts: Annotated[bool, CountCheck] = True,
    clustering: Annotated[str, typer.Option(help="Clustering algorithm: kmeans or spectral.")] = "kmeans",
    attributes: Annotated[
        bool, typer.Option("--attributes", help="Also measure how often neighbours share attributes.")
    ] = False,
    diagnose: Annotated[
        bool, typer.Option("--diagnose", help="Also report distances and how evenly the dimensions are used.")
    ] = False,
    views: Annotated[
        int, typer.Option(help="Augmented views to average per image. A model without a run uses crops and flips.")
    ] = 1,
    out: Annotated[
        Path | None, typer.Option(help="JSON file for the scores; --diagnose adds histograms of the distances.")
    ] = None,
) -> None:
    """Evaluate a model: Recall@K, R-precision, MAP@R, mAP, NMI, AMI, ARI and the scores of its method.

    Example: nearkin evaluate runs/photos-rank --recall-at 1,10,100
    """
    from nearkin import api

    result = api.evaluate(
        model,
        data=data,
        weights=weights,
        split=split,
        recall_at=_positive_integers(recall_at),
        root=root,
        check_counts=check_counts,
        clustering=clustering,
        attributes=attributes,
        diagnose=diagnose,
        views=views,
        out=out,
    )
    show(result)


@app.command(rich_help_panel="Evaluate")
def report(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="HTML file. Default: report.html in the run folder.")
    ] = None,
    split: Annotated[str, typer.Option(help="Split to show: train, validation or test.")] = "test",
) -> None:
    """Write an HTML report about a run: scores, learning curves, a map, neighbours, confusions and settings.

    Example: nearkin report runs/photos-rank
    """
    from nearkin import api

    say(f"report: {api.report(run, out, split)}")


@app.command(rich_help_panel="Evaluate")
def embed(
    model: Model,
    data: Annotated[str, typer.Argument(callback=existing_data, help="Dataset or folder of images to embed.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write (.npz).")] = Path("vectors.npz"),
    weights: NetworkWeights = None,
    root: Root = None,
    unreadable: Annotated[str, Unreadable] = "skip",
    check_counts: Annotated[bool, CountCheck] = True,
) -> None:
    """Embed a dataset and save the vectors, labels and names to an .npz file.

    Example: nearkin embed runs/photos-rank photos/ -o photos.npz
    """
    from nearkin import api

    count, dim = api.embed(model, data, out, weights, root, unreadable, check_counts).shape
    say(f"saved {count:,} vectors of {dim} dimensions to {out}")


@app.command(rich_help_panel="Evaluate")
def export(
    model: Model,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write. Default: NAME.onnx.")] = None,
    weights: NetworkWeights = None,
) -> None:
    """Export a model to ONNX.

    The file is written only if its embeddings match those of PyTorch.

    Example: nearkin export runs/photos-rank -o photos.onnx
    """
    from nearkin import api

    done = api.export(model, out, weights)
    say(
        f"{done.file}: {done.megabytes:.1f} MB, matches PyTorch on {done.checked_on} inputs, {done.real} of them from "
        f"the run's data (largest difference {done.largest_difference:.0e})"
    )


def _positive_integers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        numbers = ()
    if not numbers or numbers[0] < 1:
        raise typer.BadParameter(
            f"'{text}' is not a list of positive integers, such as 1,2,4,8", param_hint="--recall-at"
        )
    return numbers
