"""A gallery: pictures that can be found again by how they look, a folder that works without the run or its data.

``gallery.index/`` holds ``gallery.json``, ``model/`` (a copy) and, unless they are kept elsewhere, the items.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self

import torch
from PIL import Image

import nearkin
from nearkin.errors import OutOfRoom, UserError
from nearkin.files import cannot_write, read_json, write_bytes, write_json
from nearkin.models import Embedder, load_model
from nearkin.search.lock import hold
from nearkin.search.store import Embeddings, Hit, Store

FORMAT = 1
DESCRIPTION = "gallery.json"
MODEL_FILES = ("model.json", "model.safetensors")
FEW = 64  # so many pictures are read here sooner than processes start that would read them


class Gallery:
    """Entries, their vectors, and the model that made them.

    >>> with Gallery.open("photos.index") as gallery:  # doctest: +SKIP
    ...     gallery.search(gallery.encode([Path("query.jpg")]), k=3)
    [[Hit(id=7, entry=Entry(path='/photos/rose/1.jpg', label='rose', …), distance=0.31), …]]
    """

    def __init__(self, path: Path, embedder: Embedder, store: Store) -> None:
        self.path = path
        self.embedder = embedder
        self.store = store

    @classmethod
    def create(cls, path: str | Path, model: str | Path, store: str = "", weights: str | Path | None = None) -> Gallery:
        """A new, empty gallery; or the one that is there, if this model made it.

        Args:
            model, weights: see `load_model`; the gallery gets a copy of the model.
            store: where the items are kept: "" in the gallery's folder, or the address of a Milvus.
        """
        folder = Path(path).expanduser()
        embedder = load_model(model, weights)
        if embedder.model.spec.preprocess is None:
            raise UserError(
                f"the model in {model} reads feature vectors, and a gallery is made of pictures; "
                "index with a model that reads images"
            )
        with _folder_of(model, embedder) as source:
            if (folder / DESCRIPTION).exists():
                _refuse_another(folder, _digest(source), store)
            else:
                _write(folder, source, store)
        return cls.open(folder)

    @classmethod
    def open(cls, path: str | Path) -> Gallery:
        """Refuses, with the reason, what is no gallery, or one that another model or a newer version made."""
        from nearkin.search import open_store

        folder = Path(path).expanduser()
        made = _description(folder)
        embedder = Embedder.load(folder / "model")
        if _digest(folder / "model") != made["model"] or embedder.model.spec.dim != made["dim"]:
            raise UserError(
                f"the items in {folder} were embedded by another model than the one in its model/ folder; "
                "put that back, or index again into another folder"
            )
        embedder.to("cuda" if torch.cuda.is_available() else "cpu")
        return cls(folder, embedder, open_store(made["store"], folder, made["dim"], create=False))

    def __len__(self) -> int:
        return len(self.store)

    def encode(self, pictures: Sequence[Path | Image.Image]) -> Embeddings:
        """Vectors (pictures, dim) of files, or of pictures in memory."""
        return self.embedder.encode(pictures, workers=0 if len(pictures) <= FEW else None)

    def search(
        self,
        vectors: Embeddings,
        k: int = 10,
        label: str | None = None,
        exclude: Sequence[str | Path | Image.Image | None] | None = None,
    ) -> list[list[Hit]]:
        """The k nearest items of every vector (queries, dim), nearest first.

        Args:
            label: only items with this label.
            exclude: for every vector the picture that it was made from: where this is a file of the gallery, by its
                path or by where links lead, it is left out of the results.

        >>> pictures = ["photos/rose/1.jpg"]
        >>> gallery.search(gallery.encode(pictures), k=3, exclude=pictures)  # doctest: +SKIP
        """
        if exclude is None or k < 1:  # the store refuses such a k
            return self._search(vectors, k, label)
        files = [{*_names(each)} if isinstance(each, str | Path) else set() for each in exclude]
        wanted = k + 1
        while True:
            found = self._search(vectors, wanted, label)
            others = [
                [hit for hit in hits if not file or file.isdisjoint(_names(hit.entry.path))]
                for hits, file in zip(found, files, strict=True)
            ]
            # A file may be there several times, under the names of links.
            if all(len(kept) >= k or len(hits) < wanted for kept, hits in zip(others, found, strict=True)):
                return [hits[:k] for hits in others]
            wanted *= 2

    def _search(self, vectors: Embeddings, k: int, label: str | None) -> list[list[Hit]]:
        found = self.store.search(vectors, k, label)
        if not any(found) and len(self) == 0:
            raise UserError(f"{self.path} has no items yet; run `nearkin index`")
        if label is not None and not any(found) and label not in (known := self.labels()):
            near = ", ".join(difflib.get_close_matches(label, known, n=5, cutoff=0.0))
            raise UserError(
                f"no item of the gallery has the label '{label}'; "
                + (f"the nearest ones are: {near}" if near else "it has no labels at all: search without one")
            )
        return found

    def labels(self) -> dict[str, int]:
        """How many items each label has, by name; empty where there are none."""
        return {label: count for label, count in self.store.counts().items() if label}

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Around reading what there is in order to change it: of several who try to, all but the first are refused."""
        with hold(self.path / "gallery.lock"):
            yield

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def _folder_of(model: str | Path, embedder: Embedder) -> Iterator[Path]:
    """Where the files of a model are; a network by name is saved for as long as it takes."""
    folder = Path(model).expanduser()
    for source in (folder / "model", folder):
        if (source / MODEL_FILES[0]).is_file():
            yield source
            return
    with tempfile.TemporaryDirectory() as saved:
        embedder.save(Path(saved))
        yield Path(saved)


def _names(path: str | Path) -> tuple[str, str]:
    """A file's absolute path, and the one that it has without links."""
    absolute = os.path.abspath(Path(path).expanduser())  # noqa: PTH100 (links are followed in the second alone)
    return absolute, os.path.realpath(absolute)


def _write(folder: Path, source: Path, store: str) -> None:
    """Makes the folder whole or not at all."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is there already and is no gallery; give another place with -o")
    dim = json.loads((source / MODEL_FILES[0]).read_text(encoding="utf-8"))["spec"]["dim"]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as unfinished:
            begun = Path(unfinished) / folder.name
            for name in MODEL_FILES:
                write_bytes(begun / "model" / name, (source / name).read_bytes())
            made = {"format": FORMAT, "nearkin": nearkin.__version__, "dim": dim, "model": _digest(source)}
            write_json(begun / DESCRIPTION, {**made, "store": store})
            _refuse_foreign_items(store, begun, dim)
            begun.replace(folder)
    except OutOfRoom as error:
        if isinstance(error.__cause__, OSError):  # then it names a file of the unfinished folder, which nobody knows
            raise cannot_write(folder, error.__cause__) from error
        raise
    except OSError as error:
        if (folder / DESCRIPTION).exists():  # another process was faster
            return _refuse_another(folder, _digest(source), store)
        raise cannot_write(folder, error) from error


def _refuse_foreign_items(store: str, folder: Path, dim: int) -> None:
    """Vectors of two models have nothing to do with each other, even where they are equally long."""
    from nearkin.search import open_store

    with closing(open_store(store, folder, dim)) as opened:  # an address that leads nowhere is noticed here too
        if len(opened):
            raise UserError(
                f"{store} holds {len(opened):,} items of another gallery; "
                "name another collection, or copy the folder of that gallery"
            )


def _refuse_another(folder: Path, digest: str, store: str) -> None:
    made = _description(folder)
    if made["model"] != digest:
        raise UserError(
            f"{folder} was made by another model (digest {made['model'][:12]}, this one has {digest[:12]}); "
            "give another -o, or index with that model"
        )
    if made["store"] != store:
        raise UserError(
            f"the items of {folder} are kept in {made['store'] or 'its own folder'}, not in "
            f"{store or 'its own folder'}; give another -o, or the same store"
        )


def _description(folder: Path) -> dict[str, Any]:
    file = folder / DESCRIPTION
    if not file.is_file():
        raise UserError(f"{folder} is no gallery ({DESCRIPTION} is missing); make one with `nearkin index`")
    try:
        made = read_json(file)
        if int(made["format"]) <= FORMAT:
            return {"dim": int(made["dim"]), "model": str(made["model"]), "store": str(made["store"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} cannot be read ({error}); index again into another folder") from error
    raise UserError(
        f"{folder} was made by a newer nearkin ({made.get('nearkin')}, format {made['format']}; this one reads up to "
        f"{FORMAT}); upgrade nearkin to use it"
    )


def _digest(model: Path) -> str:
    """SHA-256 over what a saved model is: its specification and its weights."""
    description, weights = (model / name for name in MODEL_FILES)
    spec = json.loads(description.read_text(encoding="utf-8"))["spec"]
    with weights.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256")
    digest.update(json.dumps(spec, sort_keys=True).encode())
    return digest.hexdigest()
