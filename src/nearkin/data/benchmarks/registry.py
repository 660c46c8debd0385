"""Registry of benchmarks, with the published facts about each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nearkin.data.benchmarks.listing import Listing
from nearkin.errors import unknown_name

Loader = Callable[[Path], Listing]


@dataclass(frozen=True)
class Benchmark:
    """A dataset that papers compare on.

    Attributes:
        name: the name that users type.
        description: one line for tables.
        source: the official web page.
        counts: published numbers of images in "train", "validation", "test", "query", "gallery".
        classes: number of classes in all splits together.
        distributed: numbers of images in the official files, if they differ from the published ones.
        layout: where the files must be, in words.
        folders: usual names of its folder.
        marks: paths inside the folder; any one of them identifies the dataset.
        aliases: other names for the same benchmark.
        protocol: as in `Dataset`.
    """

    name: str
    description: str
    source: str
    counts: Mapping[str, int]
    classes: int
    layout: str
    folders: tuple[str, ...]
    marks: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    distributed: Mapping[str, int] = field(default_factory=dict)
    protocol: str = ""


def register(benchmark: Benchmark) -> Callable[[Loader], Loader]:
    """Registers the decorated loader, dataset folder -> listing, for ``benchmark``."""

    def decorate(load: Loader) -> Loader:
        for name in (benchmark.name, *benchmark.aliases):
            _registry[name] = (benchmark, load)
        return load

    return decorate


def benchmarks() -> list[Benchmark]:
    """Returns all benchmarks, sorted by name."""
    return [benchmark for name, (benchmark, _) in sorted(_registry.items()) if name == benchmark.name]


def is_benchmark(name: str) -> bool:
    return name in _registry


def registered(name: str) -> tuple[Benchmark, Loader]:
    if name not in _registry:
        raise unknown_name("dataset", name, _registry)
    return _registry[name]


_registry: dict[str, tuple[Benchmark, Loader]] = {}
