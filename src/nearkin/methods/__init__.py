"""One file per paper: which batches, which loss, when the whole space is looked at again."""

from nearkin.methods import (  # noqa: F401, I001 (importing registers, in the order in which they are listed)
    facility_location,
    spectral,
    divide_and_conquer,
    magnet,
    rank,
    plain,
)
from nearkin.methods.base import (
    Batch,
    Embed,
    Every,
    Groups,
    Method,
    known_methods,
    make_method,
    method_class,
    parse_method,
    register,
)

__all__ = [
    "Batch",
    "Embed",
    "Every",
    "Groups",
    "Method",
    "known_methods",
    "make_method",
    "method_class",
    "parse_method",
    "register",
]
