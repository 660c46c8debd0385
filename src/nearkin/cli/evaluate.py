"""Commands about one model: evaluate, report, embed, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nearkin.cli.app import CountCheck, Model, NetworkWeights, app
from nearkin.cli.printing import say, show


@app.command(rich_help_panel="Evaluate")
def evaluate(
    model: Model,
    data: Annotated[str | None, typer.Option(help="Other data than the run's own; needed without a run.")] = None,
    weights: NetworkWeights = None,
    split: Annotated[
        str | None, typer.Option(help="train, validation, test or all. Default: test; all of other data.")
    ] = None,
    recall_at: Annotated[str, typer.Option(help="The K of Recall@K.")] = "1,2,4,8",
    root: Annotated[Path | None, typer.Option(help="Where benchmark datasets are.")] = None,
    check_counts: Annotated[bool, CountCheck] = True,
    clustering: Annotated[str, typer.Option(help="How clusters are found: kmeans or spectral.")] = "kmeans",
    attributes: Annotated[bool, typer.Option("--attributes", help="Also how far neighbours share attributes.")] = False,
    diagnose: Annotated[bool, typer.Option("--diagnose", help="Also distances and how dimensions are used.")] = False,
    views: Annotated[
        int,
        typer.Option(help="Random views averaged per item, augmented as in training (without a run: crops, flips)."),
    ] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Also write the scores as JSON, with --diagnose also histograms of distances.")
    ] = None,
) -> None:
    """Measure a trained model: Recall@K, R-precision, MAP@R, mAP, NMI, AMI, ARI, and what its method reads out."""
    from nearkin import api

    result = api.evaluate(
        model,
        data=data,
        weights=weights,
        split=split,
        recall_at=_whole_numbers(recall_at),
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
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The page. Default: report.html in the run.")] = None,
    split: Annotated[str, typer.Option(help="Which split to show: train, validation or test.")] = "test",
) -> None:
    """Write one page about a run: curves, scores, the map of the space, neighbours, confusions, settings."""
    from nearkin import api

    say(f"report: {api.report(run, out, split)}")


@app.command(rich_help_panel="Evaluate")
def embed(
    model: Model,
    data: Annotated[str, typer.Argument(help="What to embed: a dataset, or any folder of images.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The .npz to write.")] = Path("vectors.npz"),
    weights: NetworkWeights = None,
    root: Annotated[Path | None, typer.Option(help="Where benchmark datasets are.")] = None,
    unreadable: Annotated[str, typer.Option(help="Images that cannot be decoded: skip or stop.")] = "skip",
    check_counts: Annotated[bool, CountCheck] = True,
) -> None:
    """Turn items into vectors: an .npz with vectors, labels and names."""
    from nearkin import api

    count, dim = api.embed(model, data, out, weights, root, unreadable, check_counts).shape
    say(f"{count} vectors of {dim} numbers in {out}")


@app.command(rich_help_panel="Evaluate")
def export(
    model: Model,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The file. Default: NAME.onnx.")] = None,
    weights: NetworkWeights = None,
) -> None:
    """Write a model as ONNX, for other languages and machines; it is first compared with torch, on the run's own data.

    Example: nearkin export runs/photos-rank -o photos.onnx
    """
    from nearkin import api

    done = api.export(model, out, weights)
    say(
        f"{done.file}: {done.megabytes:.1f} MB, equal to torch on {done.checked_on} items, {done.real} of them real "
        f"(largest difference {done.largest_difference:.0e})"
    )


def _whole_numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        numbers = ()
    if not numbers or numbers[0] < 1:
        raise typer.BadParameter(f"'{text}' is not a list of whole numbers such as 1,2,4,8")
    return numbers
