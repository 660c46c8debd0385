"""Makes the first sqrt, exp or log of a process as accurate as all later ones.

On the CPU, torch leaves these functions to MKL. MKL chooses a kernel for the processor when a function is first called.
If several threads make this first call together, one of them may compute its share with a kernel of low accuracy: MKL
2024.2 in the wheels of torch, relative errors up to 4e-4, https://github.com/pytorch/pytorch/issues/188792. Most likely
this is why distances were once off by 3e-4 for half of the queries, in one of fifteen processes. A call with one number
runs on one thread and settles the choice for the process. All calls here together take two milliseconds.

`nearkin.space` and `nearkin.clustering` import this module, and through them everything that computes with torch.
"""

from __future__ import annotations

import torch

# Every function that torch leaves to MKL's vector mathematics.
FUNCTIONS = (
    *("acos", "asin", "atan", "cos", "erf", "erfc", "erfinv", "exp"),
    *("log", "log10", "log2", "sin", "sqrt", "tan", "tanh", "trunc"),
)

for _dtype in (torch.float32, torch.float64):
    for _name in FUNCTIONS:
        getattr(torch, _name)(torch.tensor([0.5], dtype=_dtype))
