"""Commands that put a trained model to use: report, index, remove, search, match, serve, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nearkin.cli.app import CountCheck, Model, NetworkWeights, app

GalleryFolder = Annotated[Path, typer.Argument(metavar="GALLERY", help="What `nearkin index` wrote.")]
IncludeSelf = Annotated[bool, typer.Option("--include-self", help="Also a picture itself, where it is in the gallery.")]
Queries = Annotated[list[Path], typer.Argument(metavar="PICTURES...", help="One picture or several.")]


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The page. Default: report.html in the run.")] = None,
    part: Annotated[str, typer.Option(help="Which part to look at: train, validation or test.")] = "test",
) -> None:
    """Write one page about a run: curves, scores, the map of the space, neighbours, confusions, settings."""
    from nearkin.experiments.run_report import write_report

    typer.echo(f"report: {write_report(run, out, part)}")


@app.command()
def index(
    model: Model,
    data: Annotated[
        str, typer.Argument(help="A folder of pictures, with or without class folders; a .csv; a dataset.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The gallery to make or to add to.")] = Path("gallery.index"),
    weights: NetworkWeights = None,
    store: Annotated[
        str, typer.Option(help="Keep the vectors in Milvus: milvus://HOST:PORT/NAME or milvus:///FILE.db")
    ] = "",
    root: Annotated[Path | None, typer.Option(help="Where benchmark datasets lie.")] = None,
    check_counts: Annotated[bool, CountCheck] = True,
    prune: Annotated[bool, typer.Option("--prune", help="Remove items of this folder whose files are gone.")] = False,
) -> None:
    """Make pictures searchable; run it again to add what is new. Stop with Ctrl-C, the same command goes on.

    Example: nearkin index runs/photos-rank photos/ -o photos.index; without a run: nearkin index timm:resnet50 photos/
    """
    from nearkin.report.indexed import print_indexed
    from nearkin.search.indexing import index_data

    indexed = index_data(model, data, out, store, root, prune, check_counts=check_counts, weights=weights)
    print_indexed(indexed, out)


@app.command()
def remove(
    gallery: GalleryFolder,
    paths: Annotated[list[str], typer.Argument(metavar="PATHS...", help="Pictures, or folders of them.")],
) -> None:
    """Remove pictures from a gallery; the files themselves stay."""
    from nearkin.search.indexing import remove_items

    typer.echo(f"removed {remove_items(gallery, paths):,} items from {gallery}")


@app.command()
def search(
    gallery: GalleryFolder,
    pictures: Queries,
    k: Annotated[int, typer.Option("-k", help="How many neighbours.")] = 10,
    label: Annotated[str | None, typer.Option(help="Only items with this label.")] = None,
    picture: Annotated[Path | None, typer.Option("--picture", help="Also draw the results to this file.")] = None,
    include_self: IncludeSelf = False,
) -> None:
    """Find the pictures of a gallery that are most like these.

    Example: nearkin search photos.index query.jpg -k 10 --picture found.png
    """
    from nearkin.report.hits import check_picture_name, draw_hits, print_hits
    from nearkin.search import Gallery

    if picture is not None:
        check_picture_name(picture)
    with Gallery.open(gallery) as opened:
        found = opened.search(opened.encode(pictures), k, label, exclude=None if include_self else pictures)
        print_hits(pictures, found)
        if picture is not None:
            draw_hits(picture, opened, pictures, found)
            typer.echo(f"picture: {picture}")


@app.command()
def match(
    gallery: GalleryFolder,
    pictures: Queries,
    false_accepts: Annotated[
        float, typer.Option(help="Share of things of no known class that may be taken for one.")
    ] = 0.05,
    k: Annotated[int, typer.Option("-k", help="Neighbours that vote.")] = 5,
    include_self: IncludeSelf = False,
) -> None:
    """Say of which class pictures are, by a gallery with labels; what is too far from all of them is unknown.

    Example: nearkin match photos.index new/*.jpg --false-accepts 0.01
    """
    from nearkin.report.hits import print_matches
    from nearkin.report.indexed import print_calibration
    from nearkin.search import Gallery
    from nearkin.search.matching import calibrate
    from nearkin.search.matching import match as match_pictures

    with Gallery.open(gallery) as opened:
        calibration = calibrate(opened, false_accepts, k)
        print_matches(pictures, match_pictures(opened, pictures, false_accepts, k, calibration, include_self))
    print_calibration(calibration)


@app.command()
def serve(
    gallery: GalleryFolder,
    host: Annotated[str, typer.Option(help="0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Where to listen.")] = 8000,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A further name it is called by, as behind a proxy; may be repeated."),
    ] = None,
) -> None:
    """A web page to search a gallery: drop a picture, see its neighbours, walk through the map.

    Example: nearkin serve photos.index
    """
    from nearkin.serve import serve as serve_gallery

    serve_gallery(gallery, host, port, open_browser, allow_host or ())


@app.command()
def export(
    model: Model,
    onnx: Annotated[bool, typer.Option("--onnx/", help="As ONNX, the one format there is.")] = True,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The file. Default: NAME.onnx.")] = None,
    weights: NetworkWeights = None,
) -> None:
    """Write a model as ONNX, for other languages and machines; it is first compared with torch, on the run's own data.

    Example: nearkin export runs/photos-rank --onnx -o photos.onnx
    """
    from nearkin.models.onnx import export_onnx
    from nearkin.workflows import sample_items

    name = Path(model).resolve().name.rpartition(":")[2]  # timm:resnet50 is resnet50
    done = export_onnx(model, out or Path(f"{name}.onnx"), sample_items(model), weights)
    typer.echo(
        f"{done.file}: {done.megabytes:.1f} MB, equal to torch on {done.checked_on} items, {done.real} of them real "
        f"(largest difference {done.largest_difference:.0e})"
    )
