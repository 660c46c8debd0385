"""One file per paper: which batches, which loss, when the whole space is looked at again."""

from nearkin.methods import rank  # noqa: F401 (importing registers)
from nearkin.methods.base import (
    Batch,
    Embed,
    Every,
    Method,
    known_methods,
    make_method,
    method_class,
    register,
)

__all__ = ["Batch", "Embed", "Every", "Method", "known_methods", "make_method", "method_class", "register"]
