"""Which benchmarks there are, and what has been published about each."""

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
        name: what to type.
        description: one line for a table.
        source: the official page.
        counts: the published numbers of images in "train", "validation", "test", "query", "gallery".
        classes: the number of classes over all splits.
        distributed: numbers of images that the official files hold where these differ from the published ones.
        layout: where the files must be, in words.
        folders: the names its folder usually goes by.
        marks: paths inside the folder; any of them shows that this is the dataset.
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
    """Makes the decorated loader, dataset folder -> listing, the one for ``benchmark``."""

    def decorate(load: Loader) -> Loader:
        for name in (benchmark.name, *benchmark.aliases):
            _registry[name] = (benchmark, load)
        return load

    return decorate


def benchmarks() -> list[Benchmark]:
    """All benchmarks, by name."""
    return [benchmark for name, (benchmark, _) in sorted(_registry.items()) if name == benchmark.name]


def is_benchmark(name: str) -> bool:
    return name in _registry


def registered(name: str) -> tuple[Benchmark, Loader]:
    if name not in _registry:
        raise unknown_name("dataset", name, _registry)
    return _registry[name]


_registry: dict[str, tuple[Benchmark, Loader]] = {}
