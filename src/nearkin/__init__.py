"""nearkin learns embeddings in which things of a kind lie near each other, and makes them useful.

>>> import nearkin
>>> run = nearkin.train("photos/", method="rank", epochs=10)  # doctest: +SKIP
>>> nearkin.load(run.folder).encode(["a.jpg", "b.jpg"]).shape  # doctest: +SKIP
(2, 128)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from nearkin.api import load, train
    from nearkin.data import load_dataset
    from nearkin.evaluation import evaluate
    from nearkin.space import Space

__all__ = ["Space", "__version__", "evaluate", "load", "load_dataset", "train"]

# Imported when first used, so that `import nearkin` and `nearkin --help` stay fast.
_HOME = {
    "Space": "nearkin.space",
    "evaluate": "nearkin.evaluation",
    "load": "nearkin.api",
    "load_dataset": "nearkin.data",
    "train": "nearkin.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'nearkin' has no attribute '{name}'")
    return getattr(import_module(_HOME[name]), name)
