"""A gallery: images that can be searched by similarity."""

from __future__ import annotations

import difflib
import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from torch import nn

from nearkin.errors import UserError
from nearkin.files import cannot_write, open_lock
from nearkin.models import Embedder, load_model
from nearkin.models.model import default_device
from nearkin.search import matching
from nearkin.search.folder import create_folder, open_folder
from nearkin.search.indexing import LabelledFiles, absolute, inside, update
from nearkin.search.queries import Queries, embed_queries
from nearkin.search.results import Calibration, IndexResult, MatchResult, SearchResult
from nearkin.search.shown import ShownFiles, record_folders
from nearkin.search.store import Embeddings, Hit, Store


class Gallery:
    """Images, their embeddings, and the model that embedded them.

    Attributes:
        path: the gallery's folder.
        model: the `Embedder`.
        store: the items with their embeddings.
        shown: the files that may be shown: ``path in gallery.shown``.
        result: result of the last `add`.

    >>> with Gallery.open("photos.index") as gallery:  # doctest: +SKIP
    ...     print(gallery.search("query.jpg", k=2))
    query.jpg
    rank  distance  label  path
       1    0.3127  rose   /photos/rose/1.jpg
       2    0.3308  rose   /photos/rose/8.jpg
    """

    def __init__(self, path: Path, model: Embedder, store: Store, allow_path: Sequence[str | Path] = ()) -> None:
        self.path = path
        self.model = model
        self.store = store
        self.shown = ShownFiles(path, allow_path)
        self.result: IndexResult | None = None

    @classmethod
    def index(
        cls,
        model: str | Path | Embedder,
        data: Any,
        path: str | Path,
        weights: str | Path | None = None,
        store: str = "",
        root: str | Path | None = None,
        check_counts: bool = True,
        prune: bool = False,
    ) -> Self:
        """Creates or updates a gallery; repeat an interrupted call to continue it.

        Args:
            model, weights, store: see `create`.
            data, root, check_counts, prune: see `add`.
            path: the gallery's folder.

        >>> Gallery.index("runs/photos", "photos/", "photos.index").result.added  # doctest: +SKIP
        8189
        """
        files = LabelledFiles.of(data, None, root, check_counts)  # before the folder is created: this may fail
        if isinstance(data, str | Path) and absolute(data).is_dir() and absolute(path).is_relative_to(absolute(data)):
            raise UserError(f"the gallery {path} would be inside the image folder {data}; choose another folder")
        gallery = cls.create(path, model, weights, store)
        try:
            gallery._update(files, prune)
        except BaseException:
            gallery.close()
            raise
        return gallery

    @classmethod
    def create(
        cls,
        path: str | Path,
        model: str | Path | Embedder,
        weights: str | Path | None = None,
        store: str = "",
    ) -> Self:
        """Creates an empty gallery, or opens an existing one made with this model.

        Args:
            path: the gallery's folder.
            model: an `Embedder`, a run or model folder, or a pretrained network by name; the gallery keeps a copy.
            weights: a weights file for a pretrained network, instead of the ImageNet weights.
            store: where to store the items: "" for the gallery's folder, or a Milvus address (see `open_store`).
        """
        folder = Path(path).expanduser()
        embedder = model if isinstance(model, Embedder) else load_model(model, weights).to(default_device())
        if embedder.model.spec.preprocess is None:
            raise UserError("this model takes feature vectors, but a gallery contains images; use an image model")
        return cls(folder, embedder, create_folder(folder, embedder, store))

    @classmethod
    def open(
        cls,
        path: str | Path,
        backbone: nn.Module | None = None,
        store: str = "",
        allow_path: str | Path | Sequence[str | Path] | None = None,
    ) -> Self:
        """Opens a gallery, without changing it. It is safe to open a gallery from someone else.

        Args:
            path: the gallery's folder.
            backbone: if the model has a backbone of your own: a module of that kind, into which the weights are loaded.
            store: the Milvus address of the items, if they are in Milvus. It is not taken from the gallery, so that
                nearkin connects only to addresses that you name.
            allow_path: folders whose images may be shown, in addition to those that you indexed yourself.
        """
        folder = Path(path).expanduser()
        model, items = open_folder(folder, backbone, store)
        allowed = [allow_path] if isinstance(allow_path, str | Path) else allow_path or ()
        return cls(folder, model.to(default_device()), items, allowed)

    def __len__(self) -> int:
        return len(self.store)

    def __repr__(self) -> str:
        return f"<Gallery {self.path}: {len(self):,} items>"

    def search(
        self,
        queries: Queries,
        k: int = 10,
        label: str | None = None,
        include_self: bool = False,
    ) -> SearchResult | list[SearchResult]:
        """Finds the k nearest items of each query, nearest first.

        Args:
            queries: one or many inputs of `Embedder.encode` (paths, Pillow images, arrays, tensors); a folder, each of
                whose images is a query; or embeddings, a float array (dim,) or (n, dim).
            k: number of items.
            label: search only items with this label.
            include_self: whether the result of a query may contain the query's own file. Links are followed to tell.

        Returns:
            One result for a single query; a list for a list, a folder or an array of several.

        >>> gallery.search("query.jpg", k=3).labels  # doctest: +SKIP
        ['rose', 'rose', 'tulip']
        """
        embedded = embed_queries(queries, self.model)
        own_files = [None if file is None or include_self else {*_names(file)} for file in embedded.files]
        found = self._nearest(embedded.embeddings, k, label, own_files)
        results = [SearchResult(name, hits) for name, hits in zip(embedded.names, found, strict=True)]
        return results[0] if embedded.single else results

    def match(
        self,
        queries: Queries,
        false_accepts: float = 0.05,
        k: int = 5,
        include_self: bool = False,
    ) -> MatchResult | list[MatchResult]:
        """Classifies each query by a vote of its k nearest items. The class is unknown if they are too far away.

        Args:
            queries: see `search`.
            false_accepts: share of images of unknown classes that may get a label; `calibrate` derives the largest
                accepted distance from it.
            k: number of items that vote.
            include_self: whether a query's own file in the gallery may vote.

        >>> gallery.match("query.jpg").label  # doctest: +SKIP
        'rose'
        """
        calibration = self.calibrate(false_accepts, k)
        found = self.search(queries, k, include_self=include_self)
        if isinstance(found, SearchResult):
            return matching.match(found, calibration)
        return [matching.match(result, calibration) for result in found]

    def calibrate(self, false_accepts: float = 0.05, k: int = 5) -> Calibration:
        """Finds the largest distance at which `match` accepts a label; cached until the gallery changes."""
        return matching.calibrate(self.store, false_accepts, k, self.path / "calibration.json")

    def add(
        self,
        data: Any,
        labels: str | Sequence[str] | None = None,
        root: str | Path | None = None,
        check_counts: bool = True,
        prune: bool = False,
    ) -> IndexResult:
        """Adds images, and embeds changed files again.

        Args:
            data: an image file or a list of them; a folder of images, with or without class subfolders; or a dataset of
                image files, as for `nearkin.train`.
            labels: labels for image files: one for each, or one for all.
            root: folder to search first for a dataset that is given by name.
            check_counts: whether a benchmark dataset must be complete.
            prune: whether to remove items whose files are missing or have become unreadable.

        >>> gallery.add(["a.jpg", "b.jpg"], labels=["rose", "tulip"]).added  # doctest: +SKIP
        2
        """
        return self._update(LabelledFiles.of(data, labels, root, check_counts), prune)

    def remove(self, paths: str | Path | Sequence[str | Path]) -> int:
        """Removes files, or all files in a folder, from the gallery, not from disk. Returns the number of items.

        >>> gallery.remove(["photos/rose/1.jpg", "photos/tulip"])  # doctest: +SKIP
        81
        """
        with self.writing():
            ids = {entry.path: id for id, entry in self.store.entries().items()}
            to_remove: set[int] = set()
            for path in [paths] if isinstance(paths, str | Path) else paths:
                found = {ids[each] for each in inside(absolute(path), ids)}
                if not found:
                    raise UserError(f"the gallery has no item or folder {path}; nothing was removed")
                to_remove |= found
            self.store.remove(to_remove)
            self.store.finish()
        return len(to_remove)

    def labels(self) -> dict[str, int]:
        """Number of items per label, sorted by label. Items without a label are not counted."""
        return {label: count for label, count in self.store.counts().items() if label}

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Holds the gallery's write lock; other processes cannot write meanwhile. The lock ends with its process."""
        path = self.path / "gallery.lock"
        try:
            lock = open_lock(path)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno != errno.EWOULDBLOCK:
                    raise cannot_write(path, error) from error
                raise UserError(f"another process is writing to {self.path}; wait for it to end") from error
            yield

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _update(self, files: LabelledFiles, prune: bool) -> IndexResult:
        with self.writing():
            record_folders(self.path, files.folders())
            self.result = update(self.store, self.model, files, prune)
        return self.result

    def _nearest(
        self, embeddings: Embeddings, k: int, label: str | None, exclude: Sequence[set[str] | None]
    ) -> list[list[Hit]]:
        """Hits of each query (queries, dim), without the files to exclude."""
        if not any(exclude) or k < 1:  # the store rejects k < 1
            return self._search(embeddings, k, label)
        wanted = k + 1
        while True:
            found = self._search(embeddings, wanted, label)
            others = [
                [hit for hit in hits if not names or names.isdisjoint(_names(hit.path))]
                for hits, names in zip(found, exclude, strict=True)
            ]
            # Links may have put the same file into the gallery more than once.
            if all(len(kept) >= k or len(hits) < wanted for kept, hits in zip(others, found, strict=True)):
                return [hits[:k] for hits in others]
            wanted *= 2

    def _search(self, embeddings: Embeddings, k: int, label: str | None) -> list[list[Hit]]:
        found = self.store.search(embeddings, k, label)
        if not any(found) and len(self) == 0:
            raise UserError(f"{self.path} is empty; index images into it")
        if label is not None and not any(found) and label not in (known := self.labels()):
            similar = ", ".join(difflib.get_close_matches(label, known, n=5, cutoff=0.0))
            raise UserError(
                f"no item of the gallery has the label '{label}'; "
                + (f"similar labels are {similar}" if similar else "its items have no labels: search without one")
            )
        return found


def _names(path: str | Path) -> tuple[str, str]:
    """The absolute path of a file, and the same with links resolved."""
    return str(absolute(path)), os.path.realpath(absolute(path))
