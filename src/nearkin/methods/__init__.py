"""Methods, one file per paper. A method is a loss, a batch sampler, and what it does with a fresh space.

>>> Magnet(alpha=2.0).settings()["alpha"]
2.0
"""

from importlib import import_module
from pkgutil import iter_modules

# Importing a method registers it. Lists show methods in this order.
from nearkin.methods.base import (
    Batch,
    Embed,
    Every,
    Groups,
    Method,
    Phase,
    known_methods,
    make_method,
    method_class,
    parse_method,
    parse_settings,
    register,
)

from nearkin.methods.facility_location import FacilityLocation  # isort: skip
from nearkin.methods.spectral import Spectral  # isort: skip
from nearkin.methods.divide_and_conquer import DivideAndConquer  # isort: skip
from nearkin.methods.magnet import Magnet  # isort: skip
from nearkin.methods.rank import Rank  # isort: skip
from nearkin.methods.plain import (  # isort: skip
    NCA,
    PML,
    Contrastive,
    Lifted,
    Margin,
    NPairs,
    ProxyNCA,
    Softmax,
    Triplet,
)
from nearkin.methods.loss_module import LossModule  # isort: skip
from nearkin.methods.batches import takes_batches, with_batches  # isort: skip

for _file in iter_modules(__path__):  # finds methods in files that are not imported above
    import_module(f"{__name__}.{_file.name}")

__all__ = [
    "NCA",
    "PML",
    "Batch",
    "Contrastive",
    "DivideAndConquer",
    "Embed",
    "Every",
    "FacilityLocation",
    "Groups",
    "Lifted",
    "LossModule",
    "Magnet",
    "Margin",
    "Method",
    "NPairs",
    "Phase",
    "ProxyNCA",
    "Rank",
    "Softmax",
    "Spectral",
    "Triplet",
    "known_methods",
    "make_method",
    "method_class",
    "parse_method",
    "parse_settings",
    "register",
    "takes_batches",
    "with_batches",
]
