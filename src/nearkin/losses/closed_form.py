"""Losses that compute value and gradient together, by algorithms that branch on the data.

Autograd sees a single function and torch.compile a single operator, because they cannot trace such algorithms.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from nearkin.losses.batch import once_differentiable

ValueAndGradient = Callable[..., tuple[Tensor, Tensor]]


def closed_form(function: ValueAndGradient) -> Callable[..., Tensor]:
    """Makes a loss of a function that returns its value and its gradient for embeddings (batch, dim), labels, settings.

    >>> @closed_form
    ... def half_square(embeddings: Tensor) -> tuple[Tensor, Tensor]:
    ...     return embeddings.square().sum() / 2, embeddings.clone()
    >>> points = torch.tensor([[3.0, 4.0]], requires_grad=True)
    >>> half_square(points).backward()
    >>> points.grad
    tensor([[3., 4.]])
    """
    operator = torch.library.custom_op(f"nearkin::{function.__name__}", function, mutates_args=())
    operator.register_fake(lambda embeddings, *_: (embeddings.new_empty(()), torch.empty_like(embeddings)))
    operator.register_autograd(_operator_backward, setup_context=_keep_slope)

    @wraps(function)
    def loss(embeddings: Tensor, *others: Any) -> Tensor:
        # Not always the operator: its first call loads the compiler, which takes seconds.
        if is_compiling():
            value: Tensor = operator(embeddings, *others)[0]
        else:
            value = _ClosedForm.apply(embeddings, function, *others)  # type: ignore[no-untyped-call]
        return value

    return loss


class _ClosedForm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, function: ValueAndGradient, *others: Any) -> Tensor:
        value, slope = function(embeddings.detach(), *others)
        ctx.save_for_backward(slope)
        ctx.others = len(others)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _scaled(ctx, gradient), None, *(None for _ in range(ctx.others))


def _keep_slope(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.others = len(inputs) - 1


def _operator_backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return _scaled(ctx, gradient), *(None for _ in range(ctx.others))


def _scaled(ctx: Any, gradient: Tensor) -> Tensor:
    (slope,) = ctx.saved_tensors
    largest = torch.finfo(slope.dtype).max  # reached where embeddings are all but 0
    scaled: Tensor = (gradient * slope).clamp(-largest, largest)
    return scaled
