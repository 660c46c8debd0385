"""Loads data of any kind as a `Dataset`: paths, names, arrays, and datasets of other libraries."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

from nearkin.data.arrays import from_arrays, load_arrays
from nearkin.data.benchmarks import benchmarks, is_benchmark, load_benchmark
from nearkin.data.dataset import Dataset, describe_object
from nearkin.data.folder import load_folder, load_unlabelled
from nearkin.data.glyphs import glyphs
from nearkin.data.hugging_face import from_hugging_face, is_hugging_face, is_saved, load_saved
from nearkin.data.join import join_splits
from nearkin.data.table import load_table
from nearkin.errors import UserError, unknown_name


def as_dataset(data: Any, root: str | Path | None = None, check_counts: bool = True) -> Dataset:
    """Converts data of any supported kind to a `Dataset`.

    Args:
        data: a `Dataset`; a path or name as in `load_dataset`; a pair ``(X, y)`` as in `from_arrays`; a map-style torch
            dataset as in `from_torch`; a Hugging Face dataset as in `from_hugging_face`; or a dictionary of any of
            these by split: ``{"train": ..., "test": ...}``.
        root, check_counts: as in `load_dataset`.

    >>> as_dataset(([[0.0, 1.0], [1.0, 0.0], [0.9, 0.1]], ["left", "right", "right"])).classes
    ['left', 'right']
    """
    if isinstance(data, Dataset):
        return data if data.source else replace(data, source=describe_object(data, len(data)))
    if isinstance(data, str | Path):
        return load_dataset(data, root, check_counts)
    if isinstance(data, tuple) and len(data) == 2:
        return from_arrays(*data)
    if isinstance(data, type):
        raise UserError(f"{data.__name__} is a class, not data; pass an instance: {data.__name__}(...)")
    if is_hugging_face(data):
        return from_hugging_face(data)
    if isinstance(data, Mapping):
        return join_splits({name: as_dataset(split, root, check_counts) for name, split in data.items()}, data)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        from nearkin.data.torch_dataset import from_torch  # here: torch is slow to import

        return from_torch(data)
    kind = f"{type(data).__module__}.{type(data).__qualname__}"
    if hasattr(data, "__iter__"):
        raise UserError(f"a {kind} can only be read in order; pass a map-style dataset, with __getitem__ and __len__")
    raise UserError(f"a {kind} is not data; pass a path, a name, (X, y), or a torch or Hugging Face dataset")


def load_dataset(source: str | Path, root: str | Path | None = None, check_counts: bool = True) -> Dataset:
    """Loads a dataset from a path or by name.

    Args:
        source: a folder with one folder per class, a folder with a saved Hugging Face dataset, a ``.csv`` or ``.npz``
            file, the name of a benchmark (``cub200``, ``vehicleid:large``), or ``glyphs``, optionally with its size:
            ``glyphs:classes=40,per_class=10``. Write ``./cub200`` for a folder with the name of a dataset.
        root: folder that contains the benchmark, or the benchmark's own folder.
        check_counts: raise if a benchmark does not have the published numbers of images.
    """
    return replace(_loaded(str(source), root, check_counts), source=str(source))


def load_labelled_or_flat(data: Any, root: str | Path | None = None, check_counts: bool = True) -> Dataset:
    """Like `as_dataset`, but also accepts a folder of images without class folders."""
    folder = Path(data).expanduser() if isinstance(data, str | Path) else None
    if folder and folder.is_dir() and not is_saved(folder) and not any(path.is_dir() for path in folder.iterdir()):
        return load_unlabelled(folder)
    return as_dataset(data, root, check_counts)


def check_source(source: str) -> None:
    """Raises if there is no such path and no dataset of this name. Takes no time: imports nothing and reads nothing."""
    path = Path(source).expanduser()
    if source.startswith("<") or is_dataset_name(source) or path.exists():
        return
    if "/" in source or path.suffix:
        raise UserError(
            f"file or folder {source} does not exist; check the path, or choose a dataset from `nearkin datasets`"
        )
    raise unknown_name("folder or dataset", source, ["glyphs", *(benchmark.name for benchmark in benchmarks())])


def is_dataset_name(source: str) -> bool:
    """Whether a source is the name of a dataset, not a path."""
    return source.partition(":")[0] == "glyphs" or is_benchmark(source)


def _loaded(source: str, root: str | Path | None, check_counts: bool) -> Dataset:
    if source.startswith("<"):
        raise UserError(
            f"this run was trained on an object, {source}, which cannot be loaded from disk; pass it again in Python, "
            "for instance nearkin.evaluate(run, data=...) or nearkin.resume(run, data=...)"
        )
    path = Path(source).expanduser()
    name, _, options = source.partition(":")
    if name == "glyphs":
        return glyphs(**_glyph_options(options))
    if is_benchmark(source):
        return load_benchmark(source, Path(root) if root else None, check_counts)
    if path.is_dir() and is_saved(path):
        return replace(from_hugging_face(load_saved(path)), name=path.resolve().name)
    if path.is_dir():
        return load_folder(path)
    check_source(source)
    if path.suffix.lower() == ".csv":
        return load_table(path)
    if path.suffix.lower() == ".npz":
        return load_arrays(path)
    raise UserError(f"{source} is not a folder, .csv or .npz file; pass one of these or a name from `nearkin datasets`")


def _glyph_options(text: str) -> dict[str, int]:
    options = {}
    for option in filter(None, text.split(",")):
        name, _, value = option.partition("=")
        known = signature(glyphs).parameters
        if name not in known or not re.fullmatch(r"\d{1,18}", value):
            raise UserError(f"glyphs takes the options {'=, '.join(known)}= with integers, got '{option}'")
        options[name] = int(value)
    return options
