"""Indexing: embeds new and changed images and saves them to the store, batch by batch."""

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

MODEL_BATCH = 64  # images per forward pass
SAVE_AFTER, SAVE_EVERY = 1024, 5.0  # images and seconds, whichever comes first
PREFETCH = 2  # batches to decode ahead of the model


@dataclass(frozen=True)
class LabelledFiles:
    """Image files to index.

    Attributes:
        labels: the label of each file by absolute path; "" for none.
        folder: the data's folder, None for single files. Items of the gallery below it whose files are gone are
            reported as missing.
    """

    labels: dict[str, str]
    folder: Path | None

    def folders(self) -> set[Path]:
        """The data's folder, and the folders of files outside it."""
        own = () if self.folder is None else (self.folder,)
        return {*own, *(Path(path).parent for path in self.labels if not any(map(Path(path).is_relative_to, own)))}

    @classmethod
    def of(
        cls,
        data: Any,
        labels: str | Sequence[str] | None = None,
        root: str | Path | None = None,
        check_counts: bool = True,
    ) -> LabelledFiles:
        """The files of a folder, a ``.csv`` file, a dataset, one path or several paths; see `Gallery.add`."""
        if isinstance(data, str | Path) and Path(data).suffix.lower() in SUFFIXES:
            data = [data]
        if isinstance(data, list | tuple) and all(isinstance(path, str | Path) for path in data):
            return cls._of_paths(data, labels)
        if labels is None:
            return cls._of_dataset(data, root, check_counts)
        raise UserError("labels can only be given for image files; omit labels for a folder or a dataset")

    @classmethod
    def _of_paths(cls, paths: Sequence[str | Path], labels: str | Sequence[str] | None) -> LabelledFiles:
        given = [labels or ""] * len(paths) if labels is None or isinstance(labels, str) else labels
        if len(given) != len(paths):
            raise UserError(f"got {len(given)} labels for {len(paths)} paths; give one label per path")
        return cls({str(absolute(path)): str(label) for path, label in zip(paths, given, strict=True)}, None)

    @classmethod
    def _of_dataset(cls, data: Any, root: str | Path | None, check_counts: bool) -> LabelledFiles:
        dataset = load_labelled_or_flat(data, root, check_counts)
        if not isinstance(dataset.items, ImageFiles):
            raise UserError(
                f"{dataset.name} has no image files, which a gallery needs; give a folder or a .csv file of images"
            )
        names = (dataset.classes[label] for label in dataset.labels)
        files = {str(absolute(path)): name for path, name in zip(dataset.items.paths, names, strict=True)}
        source = str(data) if isinstance(data, str | Path) else dataset.source
        if is_dataset_name(source):
            return cls(files, Path(os.path.commonpath(list(files))))
        path = Path(source).expanduser()
        if not source or not path.exists():  # a dataset object, not a file or folder
            return cls(files, None)
        return cls(files, absolute(path if path.is_dir() else path.parent))


def absolute(path: str | Path) -> Path:
    """Does not follow links: the class of an image is the folder of the link, not of its target."""
    return Path(os.path.abspath(Path(path).expanduser()))  # noqa: PTH100


def inside(folder: Path, paths: Iterable[str]) -> list[str]:
    """The paths inside a folder; if ``folder`` is a file, its own path."""
    return [path for path in paths if Path(path).is_relative_to(folder)]


def update(store: Store, model: Embedder, files: LabelledFiles, prune: bool) -> IndexResult:
    """Updates a store from files. After an interruption, it continues where it stopped.

    Args:
        prune: whether to remove items whose files are missing or have become unreadable.
    """
    known = {entry.path: (id, entry) for id, entry in store.entries().items()}
    expected = inside(files.folder, known) if files.folder else files.labels.keys() & known.keys()
    indexed = IndexResult(missing=sorted(path for path in expected if not Path(path).exists()))
    to_embed, to_relabel = [], []
    for path, label in files.labels.items():
        if not is_utf8(path):
            indexed.unreadable.append(Unreadable(Path(printable(path)), "its name is not valid UTF-8; rename it"))
            continue
        before = known[path][1] if path in known else None
        if before is not None and not label:
            label = before.label  # the folder of a single class comes without labels: keep the known one
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
    """Embeds entries and saves them every few seconds, and on an interruption."""
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
        for batch, rows in _embedded(model, entries, min(SAVE_AFTER, MODEL_BATCH), indexed.unreadable):
            chunk += batch
            vectors.append(rows)
            if len(chunk) >= SAVE_AFTER or time.monotonic() - last >= SAVE_EVERY:
                save()
                last = time.monotonic()
        save()
    except KeyboardInterrupt:
        del chunk[sum(map(len, vectors)) :]  # the interruption may have come before a batch's vectors
        save()
        raise Interrupted(
            f"stopped: {saved:,} of {len(entries):,} images embedded and saved; index again to continue"
        ) from None


def _embedded(
    embedder: Embedder, entries: list[Entry], size: int, unreadable: list[Unreadable]
) -> Iterator[tuple[list[Entry], Embeddings]]:
    """Yields readable entries with their vectors (entries, dim), at most ``size`` at a time."""
    model = embedder.model
    device = device_of(model)
    with bar("indexing", len(entries)) as advance, FeatureCache(model) as cache:
        uncached: dict[Entry, Key | None] = {}
        for batch in _chunks(entries, size):
            keys = [file_key(Path(entry.path)) for entry in batch]
            hits, features = cache.get(keys)
            if hits:
                yield [batch[i] for i in hits], embed_rows(model, features).numpy()
                advance(len(hits))
            cached = set(hits)
            uncached |= {batch[i]: key for i, key in enumerate(keys) if i not in cached}
        for batch, images in _read_ahead(embedder, [*uncached], size):
            unreadable += [image for image in images if isinstance(image, Unreadable)]
            pairs = zip(batch, images, strict=True)
            readable = {entry: image for entry, image in pairs if isinstance(image, Tensor)}
            if readable:
                with torch.no_grad():
                    features = apply(model.features, torch.stack([*readable.values()]), device)
                cache.add([uncached[entry] for entry in readable], features)
                yield [*readable], embed_rows(model, features).numpy()
            advance(len(batch))


def _chunks(entries: list[Entry], size: int) -> list[list[Entry]]:
    return [entries[start : start + size] for start in range(0, len(entries), size)]


def _read_ahead(
    embedder: Embedder, entries: list[Entry], size: int
) -> Iterator[tuple[list[Entry], list[Tensor | Unreadable]]]:
    """Yields batches of entries with their images, decoded ahead and under limits; or with why one is unreadable."""
    preprocess = embedder.model.spec.preprocess
    assert preprocess is not None
    transform = make_transform(preprocess)
    decoders = DecoderPool()

    def read(entry: Entry) -> Tensor | Unreadable:
        image = decoders.read(Path(entry.path), preprocess.resize)
        return image if isinstance(image, Unreadable) else transform(image)

    batches = _chunks(entries, size)
    threads = ThreadPoolExecutor(decoders.workers)
    try:
        pending: deque[list[Future[Tensor | Unreadable]]] = deque()
        for ready, batch in enumerate(batches, start=-PREFETCH):
            pending.append([threads.submit(read, entry) for entry in batch])
            if ready >= 0:
                yield batches[ready], [image.result() for image in pending.popleft()]
        for batch in batches[-len(pending) :]:
            yield batch, [image.result() for image in pending.popleft()]
    finally:
        decoders.close()  # before the threads, which would otherwise wait for images that are being decoded
        threads.shutdown(cancel_futures=True)
