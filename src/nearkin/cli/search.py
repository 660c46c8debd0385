"""Commands of galleries: index, remove, search, match, serve."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearkin.cli.app import CountCheck, Model, NetworkWeights, app
from nearkin.cli.printing import say

if TYPE_CHECKING:
    from PIL import Image

    from nearkin.search import MatchResult, SearchResult

GalleryFolder = Annotated[Path, typer.Argument(metavar="GALLERY", help="What `nearkin index` wrote.")]
IncludeSelf = Annotated[bool, typer.Option("--include-self", help="Also an image itself, where it is in the gallery.")]
Queries = Annotated[list[Path], typer.Argument(metavar="QUERIES...", help="Images, or folders of them.")]
Store = Annotated[
    str, typer.Option(help="Where the gallery's items are, if in Milvus: it is connected to only when you name it.")
]
AllowPath = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FOLDER", help="Also show images in this folder, which you have not indexed; may be repeated."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON for each query instead.")]


@app.command(rich_help_panel="Search")
def index(
    model: Model,
    data: Annotated[str, typer.Argument(help="A folder of images, with or without class folders; a .csv; a dataset.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The gallery to make or to add to.")] = Path("gallery.index"),
    weights: NetworkWeights = None,
    store: Annotated[
        str, typer.Option(help="Keep the vectors in Milvus: milvus://HOST:PORT/NAME or milvus:///FILE.db")
    ] = "",
    root: Annotated[Path | None, typer.Option(help="Where benchmark datasets are.")] = None,
    check_counts: Annotated[bool, CountCheck] = True,
    prune: Annotated[bool, typer.Option("--prune", help="Remove items of this folder whose files are gone.")] = False,
) -> None:
    """Make images searchable; run it again to add what is new. Stop with Ctrl-C, the same command goes on.

    Example: nearkin index runs/photos-rank photos/ -o photos.index; without a run: nearkin index timm:resnet50 photos/
    """
    from nearkin.api import index as index_images

    with index_images(model, data, out, weights, store, root, check_counts, prune) as gallery:
        say(f"{out}: {gallery.result}")


@app.command(rich_help_panel="Search")
def remove(
    gallery: GalleryFolder,
    paths: Annotated[list[str], typer.Argument(metavar="PATHS...", help="Images, or folders of them.")],
    store: Store = "",
) -> None:
    """Remove images from a gallery; the files themselves stay."""
    from nearkin.search import Gallery

    with Gallery.open(gallery, store=store) as opened:
        say(f"removed {opened.remove(paths):,} items from {gallery}")


@app.command(rich_help_panel="Search")
def search(
    gallery: GalleryFolder,
    queries: Queries,
    k: Annotated[int, typer.Option("-k", help="How many neighbours.")] = 10,
    label: Annotated[str | None, typer.Option(help="Only items with this label.")] = None,
    include_self: IncludeSelf = False,
    picture: Annotated[Path | None, typer.Option("--picture", help="Also draw the results to this file.")] = None,
    as_json: AsJson = False,
    store: Store = "",
    allow_path: AllowPath = None,
) -> None:
    """Find the images of a gallery that are most like these.

    Example: nearkin search photos.index query.jpg -k 10 --picture found.png
    """
    from nearkin.data.thumbnails import file_thumbnail
    from nearkin.reports.hits import check_picture_name, draw_hits
    from nearkin.search import Gallery

    if picture is not None:
        check_picture_name(picture)
    with Gallery.open(gallery, store=store, allow_path=allow_path) as opened:
        results = opened.search(queries, k, label, include_self)
        assert isinstance(results, list)
        _print(results, as_json)
        if picture is not None:
            asked = {result.query for result in results}

            def shown(path: Path, side: int) -> Image.Image | None:
                return file_thumbnail(path, side) if str(path) in asked or str(path) in opened.shown else None

            title = f"Nearest of {len(opened):,} items in {opened.path.name}"
            draw_hits(picture, results, shown, title)
            say(f"picture: {picture}", err=as_json)


@app.command(rich_help_panel="Search")
def match(
    gallery: GalleryFolder,
    queries: Queries,
    false_accepts: Annotated[
        float, typer.Option(help="Share of the images of unknown classes that may be taken for a known one.")
    ] = 0.05,
    k: Annotated[int, typer.Option("-k", help="Neighbours that vote.")] = 5,
    include_self: IncludeSelf = False,
    as_json: AsJson = False,
    store: Store = "",
) -> None:
    """Say of which class images are, by a gallery with labels; what is too far from all of them is unknown.

    Example: nearkin match photos.index new/ --false-accepts 0.01
    """
    from nearkin.search import Gallery

    with Gallery.open(gallery, store=store) as opened:
        results = opened.match(queries, false_accepts, k, include_self)
    assert isinstance(results, list)
    _print(results, as_json)
    if not as_json:
        say(results[0].calibration)


def _print(results: Sequence[SearchResult | MatchResult], as_json: bool) -> None:
    for result in results:
        say(json.dumps(result.to_dict()) if as_json else result)


@app.command(rich_help_panel="Search")
def serve(
    gallery: GalleryFolder,
    host: Annotated[str, typer.Option(help="0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Where to listen.")] = 8000,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A further name it is called by, as behind a proxy; may be repeated."),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(help="What clients must know, or NEARKIN_TOKEN; made up and printed where --host lets others in."),
    ] = None,
    store: Store = "",
    allow_path: AllowPath = None,
) -> None:
    """A web page to search a gallery: drop a picture, see its neighbours, walk through the map.

    Example: nearkin serve photos.index
    """
    from nearkin.api import Gallery

    with Gallery.open(gallery, store=store, allow_path=allow_path) as opened:
        opened.serve(host, port, open_browser, allow_host, token)
