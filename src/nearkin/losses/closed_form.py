"""Losses that compute their value and gradient together, with algorithms that branch on the data.

Autograd and torch.compile cannot trace such algorithms, so each is one autograd function and one operator to them.
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
    """Turns a function of embeddings (batch, dim) and other arguments, which returns value and gradient, into a loss.

    >>> @closed_form
    ... def half_square(embeddings: Tensor) -> tuple[Tensor, Tensor]:
    ...     return embeddings.square().sum() / 2, embeddings.clone()
    >>> points = torch.tensor([[3.0, 4.0]], requires_grad=True)
    >>> half_square(points).backward()
    >>> points.grad
    tensor([[3., 4.]])
    """
    # Most of them read data on the host, which a CUDA graph cannot record; torch knows this tag from 2.9 on.
    more: Any = {"tags": [torch.Tag.cudagraph_unsafe]} if hasattr(torch.Tag, "cudagraph_unsafe") else {}
    operator = torch.library.custom_op(f"nearkin::{function.__name__}", function, mutates_args=(), **more)
    operator.register_fake(lambda embeddings, *_: (embeddings.new_empty(()), torch.empty_like(embeddings)))
    operator.register_autograd(_operator_backward, setup_context=_save_gradient)

    @wraps(function)
    def loss(embeddings: Tensor, *others: Any) -> Tensor:
        # Eager mode avoids the operator: its first call loads the compiler, which takes seconds.
        if is_compiling():
            value: Tensor = operator(embeddings, *others)[0]
        else:
            value = _ClosedForm.apply(embeddings, function, *others)  # type: ignore[no-untyped-call]
        return value

    return loss


class _ClosedForm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, function: ValueAndGradient, *others: Any) -> Tensor:
        value, gradient = function(embeddings.detach(), *others)
        ctx.save_for_backward(gradient)
        ctx.others = len(others)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        return _scaled(ctx, grad_output), None, *(None for _ in range(ctx.others))


def _save_gradient(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.others = len(inputs) - 1


def _operator_backward(ctx: Any, grad_output: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return _scaled(ctx, grad_output), *(None for _ in range(ctx.others))


def _scaled(ctx: Any, grad_output: Tensor) -> Tensor:
    (gradient,) = ctx.saved_tensors
    largest = torch.finfo(gradient.dtype).max  # reached if embeddings are almost 0
    scaled: Tensor = (grad_output * gradient).clamp(-largest, largest)
    return scaled
