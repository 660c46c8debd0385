"""Makes ``import torchvision`` work with a CPU build of torch.

The torchvision on package registries is compiled against CUDA. With a CPU build of torch, its compiled operators cannot
be loaded, and the import fails because it registers shape rules for operators that do not exist ("operator
torchvision::nms does not exist"). Declaring the two schemas first is enough: transforms and models are plain Python and
work. Only detection operators and torchvision.io stay unavailable, and nearkin uses neither. Import this module before
anything that imports torchvision, such as timm.
"""

from __future__ import annotations

import sys

import torch


def _declare_missing_operators() -> torch.library.Library:
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


try:
    import torchvision
except RuntimeError:
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]  # the failed import leaves a partial package behind
    _operators = _declare_missing_operators()  # kept, since the schemas vanish with it
    import torchvision  # noqa: F401
