"""Commands for galleries: index, remove, search, match, serve."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearkin.cli.app import CountCheck, Model, NetworkWeights, Root, app
from nearkin.cli.checks import existing_data, existing_files, existing_gallery
from nearkin.cli.printing import say

if TYPE_CHECKING:
    from PIL import Image

    from nearkin.search import MatchResult, SearchResult

GalleryFolder = Annotated[
    Path,
    typer.Argument(metavar="GALLERY", callback=existing_gallery, help="Gallery folder, made by `nearkin index`."),
]
IncludeSelf = Annotated[
    bool, typer.Option("--include-self", help="Also return the query itself if it is in the gallery.")
]
Queries = Annotated[
    list[Path],
    typer.Argument(metavar="QUERIES...", callback=existing_files, help="Query images, or folders of images."),
]
Store = Annotated[
    str, typer.Option(help="Milvus address of the gallery, if it is in Milvus. nearkin connects to no other.")
]
AllowPath = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FOLDER", help="Also show images from this folder, even if you did not index it. Can be repeated."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON per query.")]


@app.command(rich_help_panel="Search")
def index(
    model: Model,
    data: Annotated[
        str,
        typer.Argument(
            callback=existing_data,
            help="Folder of images, with or without class subfolders; .csv file; or dataset name.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Gallery to create or update.")] = Path("gallery.index"),
    weights: NetworkWeights = None,
    store: Annotated[
        str, typer.Option(help="Store the vectors in Milvus: milvus://HOST:PORT/NAME or milvus:///FILE.db.")
    ] = "",
    root: Root = None,
    check_counts: Annotated[bool, CountCheck] = True,
    prune: Annotated[bool, typer.Option("--prune", help="Remove items whose files in this folder are gone.")] = False,
) -> None:
    """Index images, so that they can be searched.

    Run the same command again to add new images, or to continue after Ctrl-C.

    Example: nearkin index runs/photos-rank photos/ -o photos.index

    Without training: nearkin index timm:resnet50 photos/ -o photos.index
    """
    from nearkin.api import index as index_images

    with index_images(model, data, out, weights, store, root, check_counts, prune) as gallery:
        say(f"{out}: {gallery.result}")


@app.command(rich_help_panel="Search")
def remove(
    gallery: GalleryFolder,
    paths: Annotated[list[str], typer.Argument(metavar="PATHS...", help="Images, or folders of images.")],
    store: Store = "",
) -> None:
    """Remove images from a gallery. The image files are not deleted.

    Example: nearkin remove photos.index photos/cat/1.jpg
    """
    from nearkin.data.summary import counted
    from nearkin.search import Gallery

    with Gallery.open(gallery, store=store) as opened:
        say(f"removed {counted(opened.remove(paths), 'item')} from {gallery}")


@app.command(rich_help_panel="Search")
def search(
    gallery: GalleryFolder,
    queries: Queries,
    k: Annotated[int, typer.Option("-k", help="Number of neighbours.")] = 10,
    label: Annotated[str | None, typer.Option(help="Search only items with this label.")] = None,
    include_self: IncludeSelf = False,
    figure: Annotated[Path | None, typer.Option("--figure", help="Also draw the results as an image file.")] = None,
    as_json: AsJson = False,
    store: Store = "",
    allow_path: AllowPath = None,
) -> None:
    """Find the images in a gallery that are most similar to the queries.

    Example: nearkin search photos.index query.jpg -k 10 --figure found.png
    """
    from nearkin.data.thumbnails import file_thumbnail
    from nearkin.reports.hits import check_figure_name, draw_hits
    from nearkin.search import Gallery

    if figure is not None:
        check_figure_name(figure)
    with Gallery.open(gallery, store=store, allow_path=allow_path) as opened:
        results = opened.search(queries, k, label, include_self)
        assert isinstance(results, list)
        _print(results, as_json)
        if figure is not None:
            own = {result.query for result in results}

            def thumbnail(path: Path, side: int) -> Image.Image | None:
                return file_thumbnail(path, side) if str(path) in own or str(path) in opened.shown else None

            title = f"Nearest of {len(opened):,} items in {opened.path.name}"
            draw_hits(figure, results, thumbnail, title)
            say(f"figure: {figure}", err=as_json)


@app.command(rich_help_panel="Search")
def match(
    gallery: GalleryFolder,
    queries: Queries,
    false_accepts: Annotated[
        float, typer.Option(help="False accept rate: share of images of unknown classes that may get a label.")
    ] = 0.05,
    k: Annotated[int, typer.Option("-k", help="Number of neighbours that vote.")] = 5,
    include_self: IncludeSelf = False,
    as_json: AsJson = False,
    store: Store = "",
) -> None:
    """Label images by their nearest neighbours in a labelled gallery.

    Images that are too far from every item of the gallery are reported as unknown.

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
    host: Annotated[
        str, typer.Option(help="Address to listen on. 0.0.0.0 accepts connections from other machines.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Additional host name to accept, as behind a proxy. Can be repeated."),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            help="Token that clients must send. Default: NEARKIN_TOKEN, or a random one if other machines can connect."
        ),
    ] = None,
    store: Store = "",
    allow_path: AllowPath = None,
) -> None:
    """Serve a web page that searches a gallery by image.

    Example: nearkin serve photos.index
    """
    from nearkin.api import Gallery

    with Gallery.open(gallery, store=store, allow_path=allow_path) as opened:
        opened.serve(host, port, open_browser, allow_host, token)
