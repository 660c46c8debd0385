"""Images into a store: only what is new or has changed is embedded, and it is saved batch by batch."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.data.decoders import DecoderPool
from nearkin.data.folder import SUFFIXES
from nearkin.data.images import Unreadable
from nearkin.data.items import ImageFiles
from nearkin.data.sources import is_dataset_name, load_labelled_or_flat
from nearkin.data.transforms import make_transform
from nearkin.errors import Interrupted, UserError
from nearkin.models import Embedder
from nearkin.models.embed import apply, embed_rows
from nearkin.models.feature_cache import FeatureCache, Key, file_key
from nearkin.models.model import device_of
from nearkin.names import is_utf8, printable
from nearkin.progress import bar
from nearkin.search.results import IndexResult
from nearkin.search.store import Embeddings, Entry, Store

MODEL_BATCH = 64  # images that go through the model together
SAVE_AFTER, SAVE_EVERY = 1024, 5.0  # images and seconds: whichever comes first
PREFETCH = 2  # batches that are read while the model works


@dataclass(frozen=True)
class LabelledFiles:
    """Image files to index.

    Attributes:
        labels: the label of every file, by absolute path; empty where it has none.
        folder: where the data are: what is in the gallery but gone from there is missing. None for single files.
    """

    labels: dict[str, str]
    folder: Path | None

    def folders(self) -> set[Path]:
        """What is indexed with them: the folder of the data, and those of files that are elsewhere."""
        below = () if self.folder is None else (self.folder,)
        return {*below, *(Path(path).parent for path in self.labels if not any(map(Path(path).is_relative_to, below)))}

    @classmethod
    def of(
        cls,
        data: Any,
        labels: str | Sequence[str] | None = None,
        root: str | Path | None = None,
        check_counts: bool = True,
    ) -> LabelledFiles:
        """The files of a folder, a ``.csv``, a dataset, or of one path or several; see `Gallery.add`."""
        if isinstance(data, str | Path) and Path(data).suffix.lower() in SUFFIXES:
            data = [data]
        if isinstance(data, list | tuple) and all(isinstance(path, str | Path) for path in data):
            return cls._of_paths(data, labels)
        if labels is None:
            return cls._of_dataset(data, root, check_counts)
        raise UserError("labels go with a list of paths; a folder or a dataset has its own: leave labels out")

    @classmethod
    def _of_paths(cls, paths: Sequence[str | Path], labels: str | Sequence[str] | None) -> LabelledFiles:
        given = [labels or ""] * len(paths) if labels is None or isinstance(labels, str) else labels
        if len(given) != len(paths):
            raise UserError(f"{len(given)} labels came with {len(paths)} paths; give every path one label")
        return cls({str(absolute(path)): str(label) for path, label in zip(paths, given, strict=True)}, None)

    @classmethod
    def _of_dataset(cls, data: Any, root: str | Path | None, check_counts: bool) -> LabelledFiles:
        dataset = load_labelled_or_flat(data, root, check_counts)
        if not isinstance(dataset.items, ImageFiles):
            raise UserError(
                f"{dataset.name} holds no image files that a search could show; give a folder or a .csv of images"
            )
        names = (dataset.classes[label] for label in dataset.labels)
        files = {str(absolute(path)): name for path, name in zip(dataset.items.paths, names, strict=True)}
        source = str(data) if isinstance(data, str | Path) else dataset.source
        if is_dataset_name(source):
            return cls(files, Path(os.path.commonpath(list(files))))
        place = Path(source).expanduser()
        if not source or not place.exists():  # made of an object
            return cls(files, None)
        return cls(files, absolute(place if place.is_dir() else place.parent))


def absolute(path: str | Path) -> Path:
    """Links are not followed: the folder of a link, not of its target, says what class the image has."""
    return Path(os.path.abspath(Path(path).expanduser()))  # noqa: PTH100


def inside(folder: Path, paths: Iterable[str]) -> list[str]:
    """The paths in a folder, or the one that is given itself."""
    return [path for path in paths if Path(path).is_relative_to(folder)]


def update(store: Store, model: Embedder, files: LabelledFiles, prune: bool) -> IndexResult:
    """Brings a store up to date with files; what a call that was interrupted has embedded is not embedded again.

    Args:
        prune: whether items whose files are gone, or cannot be read any more, are removed.
    """
    known = {entry.path: (id, entry) for id, entry in store.entries().items()}
    expected = inside(files.folder, known) if files.folder else files.labels.keys() & known.keys()
    indexed = IndexResult(missing=sorted(path for path in expected if not Path(path).exists()))
    to_embed, to_relabel = [], []
    for path, label in files.labels.items():
        if not is_utf8(path):
            indexed.unreadable.append(Unreadable(Path(printable(path)), "its name is not UTF-8; rename it"))
            continue
        before = known[path][1] if path in known else None
        if before is not None and not label:
            label = before.label  # the folder of one class, given alone, says nothing of classes
        entry = _on_disk(path, label)
        if entry is None:
            if before is None:
                indexed.unreadable.append(Unreadable(Path(path), "no such file"))
        elif before is None or (before.size, before.modified) != (entry.size, entry.modified):
            to_embed.append(entry)
        elif before.label != label:
            to_relabel.append(entry)
        else:
            indexed.unchanged += 1
    for chunk in _chunks(to_relabel, SAVE_AFTER):
        store.put(chunk, store.vectors([known[entry.path][0] for entry in chunk]))
    indexed.changed = len(to_relabel)
    _embed(store, model, to_embed, known.keys(), indexed)
    if prune:
        gone = {*indexed.missing, *(str(each.path) for each in indexed.unreadable)}
        ids = [id for path, (id, _) in known.items() if path in gone]
        store.remove(ids)
        indexed.removed = len(ids)
    indexed.searched = store.finish()
    indexed.total = len(store)
    return indexed


def _on_disk(path: str, label: str) -> Entry | None:
    try:
        state = Path(path).stat()
    except OSError:
        return None
    return Entry(path, label, state.st_size, state.st_mtime_ns)


def _embed(store: Store, model: Embedder, entries: list[Entry], known: Collection[str], indexed: IndexResult) -> None:
    """Whatever is embedded is in the store a few seconds later, or when this is interrupted."""
    saved = 0
    chunk: list[Entry] = []
    vectors: list[Embeddings] = []

    def save() -> None:
        nonlocal saved
        if chunk:
            store.put(chunk, np.concatenate(vectors))
        saved += len(chunk)
        changed = sum(entry.path in known for entry in chunk)
        indexed.changed += changed
        indexed.added += len(chunk) - changed
        chunk.clear()
        vectors.clear()

    try:
        last = time.monotonic()
        for some, their_vectors in _embedded(model, entries, min(SAVE_AFTER, MODEL_BATCH), indexed.unreadable):
            chunk += some
            vectors.append(their_vectors)
            if len(chunk) >= SAVE_AFTER or time.monotonic() - last >= SAVE_EVERY:
                save()
                last = time.monotonic()
        save()
    except KeyboardInterrupt:
        del chunk[sum(map(len, vectors)) :]  # one may have come without its vectors
        save()
        raise Interrupted(
            f"stopped: {saved:,} of {len(entries):,} images were embedded and saved; index again to continue"
        ) from None


def _embedded(
    embedder: Embedder, entries: list[Entry], size: int, unreadable: list[Unreadable]
) -> Iterator[tuple[list[Entry], Embeddings]]:
    """Readable entries with their vectors (entries, dim), at most ``size`` together."""
    model = embedder.model
    device = device_of(model)
    with bar("indexing", len(entries)) as advance, FeatureCache(model) as rows:
        unknown: dict[Entry, Key | None] = {}
        for some in _chunks(entries, size):
            keys = [file_key(Path(entry.path)) for entry in some]
            places, features = rows.get(keys)
            if places:
                yield [some[place] for place in places], embed_rows(model, features).numpy()
                advance(len(places))
            known = set(places)
            unknown |= {some[place]: key for place, key in enumerate(keys) if place not in known}
        for some, images in _read_ahead(embedder, [*unknown], size):
            unreadable += [image for image in images if isinstance(image, Unreadable)]
            pairs = zip(some, images, strict=True)
            readable = {entry: image for entry, image in pairs if isinstance(image, Tensor)}
            if readable:
                with torch.no_grad():
                    features = apply(model.features, torch.stack([*readable.values()]), device)
                rows.add([unknown[entry] for entry in readable], features)
                yield [*readable], embed_rows(model, features).numpy()
            advance(len(some))


def _chunks(entries: list[Entry], size: int) -> list[list[Entry]]:
    return [entries[start : start + size] for start in range(0, len(entries), size)]


def _read_ahead(
    embedder: Embedder, entries: list[Entry], size: int
) -> Iterator[tuple[list[Entry], list[Tensor | Unreadable]]]:
    """Batches of entries with their images, each decoded once and under limits; an unreadable file is passed on."""
    preprocess = embedder.model.spec.preprocess
    assert preprocess is not None
    transform = make_transform(preprocess)
    decoders = DecoderPool()

    def read(entry: Entry) -> Tensor | Unreadable:
        image = decoders.read(Path(entry.path), preprocess.resize, preprocess.interpolation)
        return image if isinstance(image, Unreadable) else transform(image)

    batches = _chunks(entries, size)
    threads = ThreadPoolExecutor(decoders.workers)
    try:
        begun: deque[list[Future[Tensor | Unreadable]]] = deque()
        for ahead, some in enumerate(batches, start=-PREFETCH):
            begun.append([threads.submit(read, entry) for entry in some])
            if ahead >= 0:
                yield batches[ahead], [image.result() for image in begun.popleft()]
        for some in batches[-len(begun) :]:
            yield some, [image.result() for image in begun.popleft()]
    finally:
        decoders.close()  # first: nobody waits for what is being decoded
        threads.shutdown(cancel_futures=True)
