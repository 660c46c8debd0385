"""nearkin in Python: one function for each command; those of a gallery are the methods of `Gallery`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from nearkin.messages import show_messages
from nearkin.models import Embedder, load_model
from nearkin.search import Gallery as SearchableGallery
from nearkin.search.indexing import Data
from nearkin.training import Run, Settings
from nearkin.training import train as train_run
from nearkin.training.fit_all import fit_all as train_on_all
from nearkin.training.run import next_folder
from nearkin.training.settings import by_section

log = logging.getLogger("nearkin")


def train(
    data: str | Path, method: str = "rank", out: str | Path | None = None, fit_all: bool = False, **settings: Any
) -> Run:
    """Trains an embedding and returns its run: the folder with the model, its scores and its curves.

    Args:
        data: a folder with one folder per class, a ``.csv``, a ``.npz``, or a dataset's name.
        method: which method; `nearkin methods` lists them.
        out: the run's folder; by default a new one under ``runs/``.
        fit_all: afterwards train once more on all classes, for as many epochs as were best, in a folder beside it, and
            return that run.
        settings: any setting of a run's ``config.toml`` by name: ``epochs=5, dim=64, alpha=2.0``.

    What was found and a line per epoch are shown on standard error, unless the program has set up logging itself.

    >>> run = train("glyphs", epochs=5, dim=64)  # doctest: +SKIP
    """
    show_messages()
    run = train_run(make_settings(data, method, settings), Path(out) if out else usual_folder(str(data), method))
    log.info(run.read_scores()["verdict"])
    return train_on_all(run) if fit_all else run


def load(model: str | Path, weights: str | Path | None = None, backbone: nn.Module | None = None) -> Embedder:
    """A model ready to ``encode``: that of a run, a copied ``model/`` folder, or a pretrained network by name.

    Args:
        model: a folder, ``timm:NAME``, ``torchvision:googlenet``, or a name of timm where there is no such folder.
        weights: of a network by name: a local file instead of the ImageNet weights, which are downloaded.
        backbone: of a model that was made around a module of your own, such a module, which gets the weights.

    >>> load("timm:resnet50").encode(["a.jpg", "b.jpg"]).shape  # doctest: +SKIP
    (2, 2048)
    """
    return load_model(model, weights, backbone)


class Gallery(SearchableGallery):
    """A gallery that can also be served: the page is built on galleries, so `nearkin.search` does not know of it."""

    def serve(
        self,
        host: str = "127.0.0.1",
        port: int = 8000,
        open_browser: bool = False,
        allow_host: Sequence[str] | None = None,
    ) -> None:
        """A web page to search the gallery, until Ctrl-C; see `nearkin.serve.serve`."""
        from nearkin.serve import serve

        serve(self, host, port, open_browser, allow_host)


def index(
    model: str | Path | Embedder | Run,
    data: Data,
    out: str | Path = "gallery.index",
    weights: str | Path | None = None,
    store: str = "",
    root: str | Path | None = None,
    check_counts: bool = True,
    prune: bool = False,
) -> Gallery:
    """Makes images searchable, or brings a gallery up to date; returns it open, with what was done as ``result``.

    Args:
        model: a run or its folder, a model, or a pretrained network by name; the gallery gets a copy of it.
        data: a folder of images, with or without class folders; a ``.csv``, a dataset or its name; a list of files.
        out: the gallery's folder.
        weights: of a network by name: a local file instead of the ImageNet weights, which are downloaded.
        store: where the items are kept: in the gallery's folder, or in Milvus: ``milvus://host:19530/collection``.
        root: where to look for a dataset known by name first.
        check_counts: whether a benchmark must have as many images as its authors published.
        prune: whether items of this folder whose files are gone are removed.

    >>> gallery = index("runs/photos", "photos/", "photos.index")  # doctest: +SKIP
    >>> print(gallery.search("query.jpg", k=3))  # doctest: +SKIP
    """
    model = model.folder if isinstance(model, Run) else model
    return Gallery.index(model, data, out, weights, store, root, check_counts, prune)


def make_settings(data: str | Path, method: str, settings: dict[str, Any]) -> Settings:
    tables = by_section(method, {"source": str(data), **settings})
    tables.setdefault("method", {})["name"] = method
    return Settings.from_tables(tables)


def usual_folder(data: str, method: str) -> Path:
    """A new folder under ``runs/``, named after data and method."""
    stem = Path(data.partition(":")[0]).stem or "data"
    return next_folder(Path("runs"), f"{stem}-{method}")
