"""One door for everything that can be trained on: a folder, a CSV, an ``.npz``, ``glyphs`` or a benchmark's name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from nearkin.data.arrays import load_arrays
from nearkin.data.benchmarks import benchmarks, is_benchmark, load_benchmark
from nearkin.data.dataset import Dataset
from nearkin.data.folder import load_folder, load_unlabelled
from nearkin.data.glyphs import glyphs
from nearkin.data.images import Unreadable, find_unreadable, listed
from nearkin.data.items import ImageFiles
from nearkin.data.summary import counted
from nearkin.data.table import load_table
from nearkin.errors import UserError, unknown_name

ON_UNREADABLE = ("skip", "stop")


def load_dataset(source: str | Path, root: str | Path | None = None, check_counts: bool = True) -> Dataset:
    """Loads a dataset from a path or by name.

    Args:
        source: a folder with one folder per class, a ``.csv``, a ``.npz``, a benchmark's name (``cub200``,
            ``vehicleid:large``), or ``glyphs``, optionally sized: ``glyphs:classes=40,per_class=10``.
            A folder that is named like a dataset is written ``./cub200``.
        root: where to look for a benchmark first.
        check_counts: whether a benchmark must have as many images as its authors published.
    """
    source = str(source)
    path = Path(source).expanduser()
    name, _, options = source.partition(":")
    if name == "glyphs":
        return glyphs(**_glyph_options(options))
    if is_benchmark(source):
        return load_benchmark(source, Path(root) if root else None, check_counts)
    if path.is_dir():
        return load_folder(path)
    if not path.exists():
        if "/" in source or path.suffix:
            raise UserError(f"there is no file or folder {source}; check the path, or see `nearkin datasets`")
        raise unknown_name("folder or dataset", source, ["glyphs", *(benchmark.name for benchmark in benchmarks())])
    if path.suffix.lower() == ".csv":
        return load_table(path)
    if path.suffix.lower() == ".npz":
        return load_arrays(path)
    raise UserError(f"{source} is no folder, .csv or .npz; give one of these or a name from `nearkin datasets`")


def load_labelled_or_flat(source: str | Path, root: str | Path | None = None, check_counts: bool = True) -> Dataset:
    """As ``load_dataset``; but a folder that holds only images needs no classes to be embedded."""
    folder = Path(source).expanduser()
    if folder.is_dir() and not any(path.is_dir() for path in folder.iterdir()):
        return load_unlabelled(folder)
    return load_dataset(source, root, check_counts)


def is_dataset_name(source: str) -> bool:
    """Whether a source is known by name, rather than a path."""
    return source.partition(":")[0] == "glyphs" or is_benchmark(source)


def without_unreadable(dataset: Dataset, action: str = "skip") -> tuple[Dataset, list[Unreadable]]:
    """The dataset without the images that cannot be decoded, and the list of those.

    ``action="stop"`` raises instead, with all of them in one message.
    """
    if action not in ON_UNREADABLE:
        raise unknown_name("action for unreadable images", action, ON_UNREADABLE)
    if not isinstance(dataset.items, ImageFiles):
        return dataset, []
    found = find_unreadable(dataset.items)
    if not found:
        return dataset, []
    if action == "stop" or len(found) == len(dataset):
        raise UserError(
            f"{len(found)} of {len(dataset)} images cannot be read; mend or remove them, "
            f"or go on without them (--unreadable skip):\n  {listed(found)}"
        )
    bad = {unreadable.path for unreadable in found}
    readable = dataset.where(np.array([path not in bad for path in dataset.items.paths]))
    note = f"ignored {counted(len(found), 'image')} that cannot be read"
    return replace(readable, notes=(*dataset.notes, note)), found


def _glyph_options(text: str) -> dict[str, int]:
    options = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if name not in ("classes", "per_class", "size", "seed") or not value.isdecimal():
            raise UserError(f"glyphs takes classes=, per_class=, size= and seed= with whole numbers, not '{part}'")
        options[name] = int(value)
    return options
