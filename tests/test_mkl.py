"""Before anything is computed on several threads, MKL has chosen its kernels."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from nearkin import _mkl

USED = {"sqrt", "exp", "log"}  # by losses and evaluation, on tensors that several threads share


class Calls(TorchFunctionMode):
    """Keeps the name, size and type of everything that is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[str, int, torch.dtype]] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if args and isinstance(args[0], torch.Tensor):
            self.seen.add((func.__name__, args[0].numel(), args[0].dtype))
        return func(*args, **kwargs or {})


def test_every_function_is_called_with_one_number_which_one_thread_computes() -> None:
    with Calls() as calls:
        importlib.reload(_mkl)
    assert set(_mkl.FUNCTIONS) >= USED
    for dtype in (torch.float32, torch.float64):
        assert {(name, 1, dtype) for name in _mkl.FUNCTIONS} <= calls.seen


@pytest.mark.parametrize("package", ["nearkin.space", "nearkin.clustering"])
def test_what_computes_imports_it(package: str) -> None:
    assert importlib.import_module(package)._mkl is _mkl
