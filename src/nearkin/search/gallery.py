"""A gallery: images that can be found again by how they look."""

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
from nearkin.models.model import usual_device
from nearkin.search import matching
from nearkin.search.folder import create_folder, open_folder
from nearkin.search.indexing import LabelledFiles, absolute, inside, update
from nearkin.search.queries import Queries, embed_queries
from nearkin.search.results import Calibration, IndexResult, MatchResult, SearchResult
from nearkin.search.shown import ShownFiles, record_folders
from nearkin.search.store import Embeddings, Hit, Store


class Gallery:
    """Images, their embeddings, and the model that made them.

    Attributes:
        path: its folder.
        model: the `Embedder`.
        store: the items with their embeddings.
        shown: which files may be shown: ``path in gallery.shown``.
        result: what the last `add` did.

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
        """Makes a gallery of images, or brings one up to date; an interrupted call goes on when it is repeated.

        Args:
            model, weights, store: see `create`.
            data, root, check_counts, prune: see `add`.
            path: the gallery's folder.

        >>> Gallery.index("runs/photos", "photos/", "photos.index").result.added  # doctest: +SKIP
        8189
        """
        files = LabelledFiles.of(data, None, root, check_counts)  # first: what cannot be read leaves no gallery behind
        if isinstance(data, str | Path) and absolute(data).is_dir() and absolute(path).is_relative_to(absolute(data)):
            raise UserError(f"the gallery {path} would be among the images in {data}; choose another folder")
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
        """A new, empty gallery; or the one that is there, if this model made it.

        Args:
            model: an `Embedder`, or with ``weights`` what `load_model` takes; the gallery gets a copy of it.
            store: where the items are kept: "" in the gallery's folder, or the address of a Milvus (`open_store`).
        """
        folder = Path(path).expanduser()
        embedder = model if isinstance(model, Embedder) else load_model(model, weights).to(usual_device())
        if embedder.model.spec.preprocess is None:
            raise UserError("the model reads feature vectors, and a gallery holds images; index with an image model")
        return cls(folder, embedder, create_folder(folder, embedder, store))

    @classmethod
    def open(
        cls,
        path: str | Path,
        backbone: nn.Module | None = None,
        store: str = "",
        allow_path: str | Path | Sequence[str | Path] | None = None,
    ) -> Self:
        """The gallery in a folder; it may come from anyone, and opening it changes nothing.

        Args:
            backbone: where its model was made around a module of your own, such a module, which gets the weights.
            store: the address of the Milvus that keeps its items, where it has one: the gallery alone does not decide
                what is connected to.
            allow_path: folders whose images may be shown, beside those that you have indexed into it yourself.
        """
        folder = Path(path).expanduser()
        model, items = open_folder(folder, backbone, store)
        allowed = [allow_path] if isinstance(allow_path, str | Path) else allow_path or ()
        return cls(folder, model.to(usual_device()), items, allowed)

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
        """The k items nearest to each query, nearest first.

        Args:
            queries: what `Embedder.encode` takes: paths, Pillow images, arrays, tensors, one or many; a folder, whose
                images are searched one by one; or embeddings, a float array (dim,) or (n, dim).
            label: only items with this label.
            include_self: whether a file that is itself in the gallery, by its path or by where links lead, is in its
                own result.

        Returns:
            One result for one query, a list for a list, a folder or an array of several.

        >>> gallery.search("query.jpg", k=3).labels  # doctest: +SKIP
        ['rose', 'rose', 'tulip']
        """
        asked = embed_queries(queries, self.model)
        files = [None if file is None or include_self else {*_names(file)} for file in asked.files]
        found = self._nearest(asked.embeddings, k, label, files)
        results = [SearchResult(name, hits) for name, hits in zip(asked.names, found, strict=True)]
        return results[0] if asked.single else results

    def match(
        self,
        queries: Queries,
        false_accepts: float = 0.05,
        k: int = 5,
        include_self: bool = False,
    ) -> MatchResult | list[MatchResult]:
        """The class of each query by the votes of its k nearest items; unknown where the nearest of them is too far.

        Args:
            queries, include_self: see `search`. A file that is in the gallery has no vote on itself unless asked for.
            false_accepts: share of the images of unknown classes that may be taken for a known one; the distance that
                follows from it is measured on the gallery itself (`calibrate`).

        >>> gallery.match("query.jpg").label  # doctest: +SKIP
        'rose'
        """
        calibration = self.calibrate(false_accepts, k)
        found = self.search(queries, k, include_self=include_self)
        if isinstance(found, SearchResult):
            return matching.match(found, calibration)
        return [matching.match(result, calibration) for result in found]

    def calibrate(self, false_accepts: float = 0.05, k: int = 5) -> Calibration:
        """The largest distance at which `match` accepts a label; kept until the gallery changes."""
        return matching.calibrate(self.store, false_accepts, k, self.path / "calibration.json")

    def add(
        self,
        data: Any,
        labels: str | Sequence[str] | None = None,
        root: str | Path | None = None,
        check_counts: bool = True,
        prune: bool = False,
    ) -> IndexResult:
        """Adds images, and embeds again those whose files have changed.

        Args:
            data: image files, one or a list; a folder of images, with or without class folders; or a dataset of image
                files, as `nearkin.train` takes it.
            labels: of files: one for each, or one for all.
            root: where to look for a dataset known by name first.
            check_counts: whether a benchmark must have as many images as its authors published.
            prune: whether items whose files are gone, or cannot be read any more, are removed.

        >>> gallery.add(["a.jpg", "b.jpg"], labels=["rose", "tulip"]).added  # doctest: +SKIP
        2
        """
        return self._update(LabelledFiles.of(data, labels, root, check_counts), prune)

    def remove(self, paths: str | Path | Sequence[str | Path]) -> int:
        """Forgets files, or everything in a folder, and returns how many items that were; the files stay.

        >>> gallery.remove(["photos/rose/1.jpg", "photos/tulip"])  # doctest: +SKIP
        81
        """
        with self.writing():
            ids = {entry.path: id for id, entry in self.store.entries().items()}
            chosen: set[int] = set()
            for path in [paths] if isinstance(paths, str | Path) else paths:
                found = {ids[each] for each in inside(absolute(path), ids)}
                if not found:
                    raise UserError(f"the gallery has no item {path}, nor one in such a folder; nothing was removed")
                chosen |= found
            self.store.remove(chosen)
            self.store.finish()
        return len(chosen)

    def labels(self) -> dict[str, int]:
        """How many items each label has, by name; empty where there are none."""
        return {label: count for label, count in self.store.counts().items() if label}

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Around a change: while one process makes it, others are refused. The lock ends with its process."""
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
        """Hits for each embedding (queries, dim), without items of the names to exclude."""
        if not any(exclude) or k < 1:  # the store refuses such a k
            return self._search(embeddings, k, label)
        wanted = k + 1
        while True:
            found = self._search(embeddings, wanted, label)
            others = [
                [hit for hit in hits if not names or names.isdisjoint(_names(hit.path))]
                for hits, names in zip(found, exclude, strict=True)
            ]
            # A file may be there several times, under the names of links.
            if all(len(kept) >= k or len(hits) < wanted for kept, hits in zip(others, found, strict=True)):
                return [hits[:k] for hits in others]
            wanted *= 2

    def _search(self, embeddings: Embeddings, k: int, label: str | None) -> list[list[Hit]]:
        found = self.store.search(embeddings, k, label)
        if not any(found) and len(self) == 0:
            raise UserError(f"{self.path} has no items yet; index images into it")
        if label is not None and not any(found) and label not in (known := self.labels()):
            near = ", ".join(difflib.get_close_matches(label, known, n=5, cutoff=0.0))
            raise UserError(
                f"no item of the gallery has the label '{label}'; "
                + (f"the nearest ones are: {near}" if near else "it has no labels at all: search without one")
            )
        return found


def _names(path: str | Path) -> tuple[str, str]:
    """A file's absolute path, and where links lead."""
    return str(absolute(path)), os.path.realpath(absolute(path))
