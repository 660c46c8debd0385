"""One door for everything that can be trained on: paths, names, arrays, and datasets of other libraries."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

from nearkin.data.arrays import from_arrays, load_arrays
from nearkin.data.benchmarks import benchmarks, is_benchmark, load_benchmark
from nearkin.data.dataset import Dataset, described
from nearkin.data.folder import load_folder, load_unlabelled
from nearkin.data.glyphs import glyphs
from nearkin.data.hugging_face import from_hugging_face, is_hugging_face, is_saved, load_saved
from nearkin.data.join import join_splits
from nearkin.data.table import load_table
from nearkin.errors import UserError, unknown_name


def as_dataset(data: Any, root: str | Path | None = None, check_counts: bool = True) -> Dataset:
    """Whatever people have, as a dataset.

    Args:
        data: a `Dataset`; a path or name as in `load_dataset`; a pair ``(X, y)`` as in `from_arrays`; a map-style torch
            dataset as in `from_torch`; a Hugging Face dataset as in `from_hugging_face`; or a dictionary of any of
            these by split: ``{"train": ..., "test": ...}``.
        root, check_counts: as in `load_dataset`.

    >>> as_dataset(([[0.0, 1.0], [1.0, 0.0], [0.9, 0.1]], ["left", "right", "right"])).classes
    ['left', 'right']
    """
    if isinstance(data, Dataset):
        return data if data.source else replace(data, source=described(data, len(data)))
    if isinstance(data, str | Path):
        return load_dataset(data, root, check_counts)
    if isinstance(data, tuple) and len(data) == 2:
        return from_arrays(*data)
    if isinstance(data, type):
        raise UserError(f"{data.__name__} is a class, not data; give an object of it: {data.__name__}(...)")
    if is_hugging_face(data):
        return from_hugging_face(data)
    if isinstance(data, Mapping):
        return join_splits({name: as_dataset(split, root, check_counts) for name, split in data.items()}, data)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        from nearkin.data.torch_dataset import from_torch  # imported here because torch is slow to load

        return from_torch(data)
    kind = f"{type(data).__module__}.{type(data).__qualname__}"
    if hasattr(data, "__iter__"):
        raise UserError(f"a {kind} can only be read in order; give a map-style dataset, with __getitem__ and __len__")
    raise UserError(f"a {kind} is not data; give a path, a name, (X, y), or a torch or Hugging Face dataset")


def load_dataset(source: str | Path, root: str | Path | None = None, check_counts: bool = True) -> Dataset:
    """Loads a dataset from a path or by name.

    Args:
        source: a folder with one folder per class, one that a Hugging Face dataset was saved to, a ``.csv``, a
            ``.npz``, a benchmark's name (``cub200``, ``vehicleid:large``), or ``glyphs``, optionally sized:
            ``glyphs:classes=40,per_class=10``. A folder that is named like a dataset is written ``./cub200``.
        root: where to look for a benchmark first.
        check_counts: whether a benchmark must have as many images as its authors published.
    """
    return replace(_loaded(str(source), root, check_counts), source=str(source))


def load_labelled_or_flat(data: Any, root: str | Path | None = None, check_counts: bool = True) -> Dataset:
    """As `as_dataset`; but a folder that holds only images needs no classes to be embedded."""
    folder = Path(data).expanduser() if isinstance(data, str | Path) else None
    if folder and folder.is_dir() and not is_saved(folder) and not any(path.is_dir() for path in folder.iterdir()):
        return load_unlabelled(folder)
    return as_dataset(data, root, check_counts)


def is_dataset_name(source: str) -> bool:
    """Whether a source is known by name, rather than a path."""
    return source.partition(":")[0] == "glyphs" or is_benchmark(source)


def _loaded(source: str, root: str | Path | None, check_counts: bool) -> Dataset:
    if source.startswith("<"):
        raise UserError(
            f"this was trained on an object, {source}, which cannot be loaded again; pass the same object: "
            "nearkin.resume(run, data=dataset) or nearkin.evaluate(run, data=dataset)"
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
    if not path.exists():
        if "/" in source or path.suffix:
            raise UserError(f"there is no file or folder {source}; check the path, or see `nearkin datasets`")
        raise unknown_name("folder or dataset", source, ["glyphs", *(benchmark.name for benchmark in benchmarks())])
    if path.suffix.lower() == ".csv":
        return load_table(path)
    if path.suffix.lower() == ".npz":
        return load_arrays(path)
    raise UserError(f"{source} is not a folder, .csv or .npz; give one of these or a name from `nearkin datasets`")


def _glyph_options(text: str) -> dict[str, int]:
    options = {}
    for option in filter(None, text.split(",")):
        name, _, value = option.partition("=")
        known = signature(glyphs).parameters
        if name not in known or not re.fullmatch(r"\d{1,18}", value):
            raise UserError(f"glyphs takes {'=, '.join(known)}= with whole numbers, not '{option}'")
        options[name] = int(value)
    return options
