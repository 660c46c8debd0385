"""Pictures into a gallery: only what is new or has changed is embedded, and kept chunk by chunk."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nearkin.data.images import Unreadable, read_image
from nearkin.data.items import ImageFiles
from nearkin.data.sources import is_dataset_name, load_labelled_or_flat
from nearkin.data.transforms import make_transform
from nearkin.errors import Interrupted, UserError
from nearkin.models import Embedder
from nearkin.models.embed import apply
from nearkin.models.feature_cache import FeatureCache, Key, embed_rows, file_key
from nearkin.models.model import device_of
from nearkin.progress import bar
from nearkin.search.gallery import Gallery
from nearkin.search.store import Embeddings, Entry

AT_ONCE = 64  # pictures that go through the model together
KEPT_AFTER = 5.0  # seconds, if a batch is not full before
AHEAD = 2  # such batches are read while the model works


@dataclass
class Indexed:
    """What became of the files, and of the gallery.

    Attributes:
        added, changed, unchanged: how many files are new, have other content or another label, are as they were.
        missing: files in the gallery that have vanished from where the data lie; they stay unless pruned.
        removed: how many items were pruned.
        unreadable: files that are no images; what the gallery knew of them stays unless pruned.
        searched: how the gallery is searched, in a sentence.
        total: how many items it has now.
    """

    added: int = 0
    changed: int = 0
    unchanged: int = 0
    missing: list[str] = field(default_factory=list)
    removed: int = 0
    unreadable: list[Unreadable] = field(default_factory=list)
    searched: str = ""
    total: int = 0


def index_data(
    model: str | Path,
    data: str | Path,
    out: str | Path,
    store: str = "",
    root: str | Path | None = None,
    prune: bool = False,
    batch: int = 1024,
    check_counts: bool = True,
    weights: str | Path | None = None,
) -> Indexed:
    """Brings a gallery up to date with pictures; the same command goes on where one was stopped.

    Args:
        model, weights: see `load_model`.
        data: a folder per class, a folder of images, a ``.csv`` or a dataset's name.
        out: the gallery's folder.
        store: where its items are kept: "" in that folder, or the address of a Milvus.
        root: where to look for a dataset known by name first.
        prune: whether items whose files have vanished, or cannot be read any more, are removed.
        batch: after how many pictures, if not after a few seconds, they are kept, whatever happens then.
        check_counts: whether a benchmark must have as many images as its authors published.

    >>> index_data("runs/x", "photos/", "photos.index").added  # doctest: +SKIP
    8189
    """
    if batch < 1:
        raise UserError(f"batch={batch} pictures cannot be embedded together; choose batch from 1")
    data = str(data)
    labels = _labels(data, root, check_counts)
    place = _place(data, labels)
    if Path(data).is_dir() and _absolute(out).is_relative_to(place):
        raise UserError(f"the gallery {out} would lie among the pictures in {data}; give another place with -o")
    with Gallery.create(out, model, store, weights) as gallery, gallery.writing():
        indexed = _bring_up_to_date(gallery, labels, place, prune, batch)
        indexed.searched = gallery.store.finish()
        indexed.total = len(gallery)
    return indexed


def remove_items(gallery: str | Path, paths: Sequence[str | Path]) -> int:
    """Forgets files, or everything in a folder; returns how many items that were.

    >>> remove_items("photos.index", ["photos/rose/1.jpg", "photos/tulip"])  # doctest: +SKIP
    81
    """
    with Gallery.open(gallery) as opened, opened.writing():
        ids = {entry.path: id for id, entry in opened.store.entries().items()}
        chosen: set[int] = set()
        for path in paths:
            inside = {ids[each] for each in _inside(_absolute(path), ids)}
            if not inside:
                raise UserError(f"the gallery has no item {path}, nor one in such a folder; nothing was removed")
            chosen |= inside
        opened.store.remove(chosen)
        opened.store.finish()
    return len(chosen)


def _labels(data: str, root: str | Path | None, check_counts: bool) -> dict[str, str]:
    """The label of every file, by absolute path."""
    dataset = load_labelled_or_flat(data, root, check_counts)
    if not isinstance(dataset.items, ImageFiles):
        raise UserError(f"{data} holds no picture files that a search could show; give a folder or a .csv of images")
    return {
        str(_absolute(path)): dataset.classes[label]
        for path, label in zip(dataset.items.paths, dataset.labels, strict=True)
    }


def _place(data: str, paths: Iterable[str]) -> Path:
    """The folder in which the data lie: what vanished from there is missing."""
    place = Path(data).expanduser()
    if is_dataset_name(data):
        return Path(os.path.commonpath(list(paths)))
    return _absolute(place if place.is_dir() else place.parent)


def _absolute(path: str | Path) -> Path:
    """Links are not followed: it is the folder of a link that says what class its picture has."""
    return Path(os.path.abspath(Path(path).expanduser()))  # noqa: PTH100


def _inside(place: Path, paths: Iterable[str]) -> list[str]:
    return [path for path in paths if Path(path).is_relative_to(place)]


def _bring_up_to_date(gallery: Gallery, labels: dict[str, str], place: Path, prune: bool, batch: int) -> Indexed:
    store = gallery.store
    known = {entry.path: (id, entry) for id, entry in store.entries().items()}
    indexed = Indexed(missing=[path for path in _inside(place, known) if not Path(path).exists()])
    to_embed, to_relabel = [], []
    for path, label in labels.items():
        if (nameable := path.encode(errors="replace").decode()) != path:
            indexed.unreadable.append(Unreadable(Path(nameable), "its name is no UTF-8; rename it"))
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
    for start in range(0, len(to_relabel), batch):
        chunk = to_relabel[start : start + batch]
        store.put(chunk, store.vectors([known[entry.path][0] for entry in chunk]))
    indexed.changed = len(to_relabel)
    _embed(gallery, to_embed, batch, known.keys(), indexed)
    if prune:
        gone = {*indexed.missing, *(str(each.path) for each in indexed.unreadable)}
        ids = [id for path, (id, _) in known.items() if path in gone]
        store.remove(ids)
        indexed.removed = len(ids)
    return indexed


def _on_disk(path: str, label: str) -> Entry | None:
    try:
        state = Path(path).stat()
    except OSError:
        return None
    return Entry(path, label, state.st_size, state.st_mtime_ns)


def _embed(gallery: Gallery, entries: list[Entry], batch: int, known: Collection[str], indexed: Indexed) -> None:
    """Whatever is embedded is in the gallery a few seconds later, or when this is interrupted."""
    kept = 0
    chunk: list[Entry] = []
    vectors: list[Embeddings] = []

    def keep() -> None:
        nonlocal kept
        if chunk:
            gallery.store.put(chunk, np.concatenate(vectors))
        kept += len(chunk)
        changed = sum(entry.path in known for entry in chunk)
        indexed.changed += changed
        indexed.added += len(chunk) - changed
        chunk.clear()
        vectors.clear()

    try:
        last = time.monotonic()
        for some, their_vectors in _embedded(gallery.embedder, entries, min(batch, AT_ONCE), indexed.unreadable):
            chunk += some
            vectors.append(their_vectors)
            if len(chunk) >= batch or time.monotonic() - last >= KEPT_AFTER:
                keep()
                last = time.monotonic()
        keep()
    except KeyboardInterrupt:
        del chunk[sum(map(len, vectors)) :]  # one may have come without its vectors
        keep()
        raise Interrupted(
            f"stopped: {kept:,} of {len(entries):,} pictures were embedded and kept; the same command goes on from here"
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
        for some, pictures in _read_ahead(embedder, [*unknown], size):
            unreadable += [picture for picture in pictures if isinstance(picture, Unreadable)]
            pairs = zip(some, pictures, strict=True)
            readable = {entry: picture for entry, picture in pairs if isinstance(picture, Tensor)}
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
    """Batches of entries with their pictures, each decoded once, in threads: a file that is no image stops nothing."""
    preprocess = embedder.model.spec.preprocess
    assert preprocess is not None
    transform = make_transform(preprocess)

    def read(entry: Entry) -> Tensor | Unreadable:
        picture = read_image(Path(entry.path))
        return picture if isinstance(picture, Unreadable) else transform(picture)

    batches = _chunks(entries, size)
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        begun: deque[list[Future[Tensor | Unreadable]]] = deque()
        for ahead, some in enumerate(batches, start=-AHEAD):
            begun.append([pool.submit(read, entry) for entry in some])
            if ahead >= 0:
                yield batches[ahead], [picture.result() for picture in begun.popleft()]
        for some in batches[-len(begun) :]:
            yield some, [picture.result() for picture in begun.popleft()]
    finally:
        pool.shutdown(cancel_futures=True)
