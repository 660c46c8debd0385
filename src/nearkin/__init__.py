"""Deep metric learning: learn embeddings in which similar items are close, then evaluate, compare and search them.

>>> import nearkin
>>> run = nearkin.train("photos/", method="rank", epochs=10)  # doctest: +SKIP
>>> nearkin.load(run.folder).encode(["a.jpg", "b.jpg"]).shape  # doctest: +SKIP
(2, 128)
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from nearkin.api import Gallery, demo, embed, evaluate, export, index, load, report, resume, train
    from nearkin.clustering.cluster import cluster
    from nearkin.data import load_dataset
    from nearkin.estimator import MetricLearner
    from nearkin.experiments import compare, reproduce
    from nearkin.space import Space

__all__ = [
    "Gallery",
    "MetricLearner",
    "Space",
    "__version__",
    "cluster",
    "compare",
    "demo",
    "embed",
    "evaluate",
    "export",
    "index",
    "load",
    "load_dataset",
    "report",
    "reproduce",
    "resume",
    "train",
]

# Imported on first use, so that `import nearkin` and `nearkin --help` stay fast.
_HOME = {
    "Gallery": "nearkin.api",
    "MetricLearner": "nearkin.estimator",
    "Space": "nearkin.space",
    "cluster": "nearkin.clustering.cluster",
    "compare": "nearkin.experiments",
    "demo": "nearkin.api",
    "embed": "nearkin.api",
    "evaluate": "nearkin.api",
    "export": "nearkin.api",
    "index": "nearkin.api",
    "load": "nearkin.api",
    "load_dataset": "nearkin.data",
    "report": "nearkin.api",
    "reproduce": "nearkin.experiments",
    "resume": "nearkin.api",
    "train": "nearkin.api",
}


def __dir__() -> list[str]:
    return [*__all__, *(module.name for module in iter_modules(__path__) if not module.name.startswith("_"))]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if not name.startswith("_") and find_spec(f"nearkin.{name}"):  # a subpackage, such as nearkin.losses
        return import_module(f"nearkin.{name}")
    raise AttributeError(f"module 'nearkin' has no attribute '{name}'")
