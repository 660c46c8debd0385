"""Benchmark datasets by name, read from their official files with their official splits.

>>> from nearkin.data.benchmarks import load_benchmark
>>> birds = load_benchmark("cub200")  # doctest: +SKIP

Each benchmark is one small file: a loader that turns the official lists into a ``Listing``, registered with the
published facts about the dataset. Nothing is downloaded, and loading opens no image.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

from nearkin.data.benchmarks import (  # noqa: F401  (imported to register themselves)
    cars196,
    cub200,
    dogs120,
    flowers102,
    imagenet_attributes,
    inshop,
    pets37,
    sop,
    vehicleid,
)
from nearkin.data.benchmarks.listing import to_dataset
from nearkin.data.benchmarks.registry import Benchmark, benchmarks, is_benchmark, registered
from nearkin.data.dataset import Dataset
from nearkin.errors import UserError

__all__ = ["Benchmark", "benchmarks", "find", "is_benchmark", "load_benchmark"]


def load_benchmark(name: str, root: Path | None = None, check_counts: bool = True) -> Dataset:
    """Loads a benchmark with its official split, and its query and gallery masks if it has them.

    Args:
        name: one of ``benchmarks()``, for example "cub200" or "vehicleid:large".
        root: the dataset's own folder, or a folder that contains it; None: see ``find``.
        check_counts: raise if the numbers of images are not the published ones.
    """
    benchmark, load = registered(name)
    folder = find(name, root)
    if folder is None:
        searched = " and ".join(str(folder) for folder in _roots(root))
        raise UserError(
            f"dataset '{name}' was not found in {searched}: download it from {benchmark.source} and place it there as "
            f'{benchmark.layout}, or set the folder that contains it with root="..." or NEARKIN_DATA'
        )
    dataset = replace(to_dataset(benchmark.name, folder, load(folder)), protocol=benchmark.protocol)
    if check_counts:
        _check_counts(benchmark, dataset, folder)
    return dataset


def find(name: str, root: Path | None = None) -> Path | None:
    """Finds the folder of a benchmark; returns None if there is none.

    Searches ``root``, else the folders in ``$NEARKIN_DATA``, else ``./data`` and ``~/datasets``. Each may be the
    dataset's own folder, or contain it under one of its usual names.
    """
    benchmark, _ = registered(name)
    names = ("", *benchmark.folders)
    for base in _roots(root):
        for outer, inner in product(names, names):  # the folder itself, a subfolder, or a subfolder of that
            folder = base / outer / inner
            if any((folder / mark).exists() for mark in benchmark.marks):
                return folder
    return None


def _roots(root: Path | None) -> list[Path]:
    if root is not None:
        return [root.expanduser()]
    chosen = os.environ.get("NEARKIN_DATA", "")
    folders = list(filter(None, chosen.split(os.pathsep))) or ["data", "~/datasets"]
    return [Path(folder).expanduser() for folder in folders]


def _check_counts(benchmark: Benchmark, dataset: Dataset, folder: Path) -> None:
    found = Counter(() if dataset.split is None else dataset.split.tolist())
    for role, mask in (("query", dataset.is_query), ("gallery", dataset.is_gallery)):
        found[role] = 0 if mask is None else int(mask.sum())
    wrong = [
        f"{found[name]:,} {name} images instead of {expected:,}"
        for name, expected in benchmark.counts.items()
        if found[name] not in (expected, benchmark.distributed.get(name))
    ]
    if wrong:
        raise UserError(
            f"{benchmark.name} in {folder} lists {' and '.join(wrong)}: if the download is incomplete, "
            f"download it again from {benchmark.source}; to use it as it is, set check_counts=False"
        )
