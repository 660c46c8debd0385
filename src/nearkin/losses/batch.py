"""Shared steps of all losses: check the batch, and compute in full precision even under autocast."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any, TypeVar

import numpy.typing as npt
import torch
from torch import Tensor
from torch.compiler import is_compiling

from nearkin.errors import UserError

Labels = Tensor | Sequence[float] | npt.NDArray[Any]  # integers of any dtype, (batch,) or (batch, 1)


_thread = threading.local()  # ``checks_data``: False in a block of `unchecked`


@contextmanager
def unchecked() -> Iterator[None]:
    """Losses computed in this block never read tensor data on the host, as in a compiled loss.

    On a GPU, such a read waits for all work in progress. Without it, a loss does not notice NaN in a batch, or labels
    out of range, and shapes cannot depend on the data. Losses in other threads are checked as usual.

    >>> with unchecked():
    ...     checked(torch.tensor([[torch.nan]]), [0])[0]
    tensor([[nan]])
    """
    before = getattr(_thread, "checks_data", True)
    _thread.checks_data = False
    try:
        yield
    finally:
        _thread.checks_data = before


def reads_data() -> bool:
    """Whether a loss may read tensor data on the host, for checks and shapes."""
    return not is_compiling() and getattr(_thread, "checks_data", True)


def checked(embeddings: Tensor, labels: Labels) -> tuple[Tensor, Tensor]:
    """Checks a batch, moves its labels to the embeddings' device, and converts half precision to float32.

    Checks that read data are skipped in a compiled loss, because they would break its graph, and by `unchecked`.

    >>> embeddings, labels = checked(torch.zeros(2, 3, dtype=torch.float16), [-7, 10**12])
    >>> embeddings.dtype, labels.dtype
    (torch.float32, torch.int64)
    """
    if not isinstance(embeddings, Tensor):
        raise UserError(
            f"embeddings must be a tensor, got {type(embeddings).__name__}; use torch.as_tensor(embeddings)"
        )
    if embeddings.ndim != 2 or not embeddings.is_floating_point():
        raise UserError(
            f"embeddings must be floats of shape (batch, dim), got {embeddings.dtype}, shape {tuple(embeddings.shape)}"
        )
    labels = checked_ids(labels, embeddings, "labels")
    if embeddings.numel() == 0:
        raise UserError(f"the batch is empty: embeddings have shape {tuple(embeddings.shape)}")
    if reads_data():
        check_finite(embeddings)
    return embeddings.float() if embeddings.dtype in (torch.float16, torch.bfloat16) else embeddings, labels


def check_finite(embeddings: Tensor) -> None:
    """Raises an error for NaN or infinite values; also for losses that wait for the GPU anyway."""
    if not math.isfinite(embeddings.detach().abs().max()):  # an order faster than isfinite()
        raise UserError(
            "embeddings contain NaN or infinite values; lower the learning rate, or check the data for extreme values"
        )


def checked_ids(ids: Labels, embeddings: Tensor, name: str) -> Tensor:
    """Checks that there is one integer per embedding; returns the integers as int64 on the embeddings' device.

    >>> checked_ids([[1.0], [3.0]], torch.zeros(2, 3), "labels")
    tensor([1, 3])
    >>> checked_ids(["cat", "dog"], torch.zeros(2, 3), "labels")
    Traceback (most recent call last):
    nearkin.errors.UserError: labels must be integers; convert strings with numpy.unique(labels, return_inverse=True)[1]
    """
    if not isinstance(ids, Tensor):
        try:
            ids = torch.as_tensor(ids)
        except (TypeError, ValueError) as error:
            raise UserError(
                f"{name} must be integers; convert strings with numpy.unique({name}, return_inverse=True)[1]"
            ) from error
    if ids.shape not in (embeddings.shape[:1], (len(embeddings), 1)):
        raise UserError(f"{name} of shape {tuple(ids.shape)} do not match {len(embeddings)} embeddings")
    if ids.is_complex() or (ids.is_floating_point() and reads_data() and ids.frac().ne(0).any()):
        raise UserError(f"{name} must be integers, got {ids.dtype} with fractions, NaN or infinite values")
    return ids.to(embeddings.device, torch.long).flatten()


def dense_labels(labels: Tensor, classes: int) -> Tensor:
    """Checks that labels are in 0…classes−1, for losses that have parameters for each class.

    >>> dense_labels(torch.tensor([0, 7]), classes=6)
    Traceback (most recent call last):
    nearkin.errors.UserError: labels must be in 0…5, because this loss has parameters for each class; got 7
    """
    if reads_data() and len(outside := labels[(labels < 0) | (labels >= classes)]):
        raise UserError(
            f"labels must be in 0…{classes - 1}, because this loss has parameters for each class; got {int(outside[0])}"
        )
    return labels


def checked_for_classes(embeddings: Tensor, labels: Labels, per_class: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Checks a batch for a loss with a vector per class, (classes, dim); converts these vectors to the batch's dtype.

    >>> _ = checked_for_classes(torch.zeros(1, 3), torch.tensor([0]), torch.zeros(6, 8))
    Traceback (most recent call last):
    nearkin.errors.UserError: this loss was built for embeddings with 8 dimensions, got 3
    """
    embeddings, labels = checked(embeddings, labels)
    classes, dim = per_class.shape
    if embeddings.shape[1] != dim:
        raise UserError(f"this loss was built for embeddings with {dim} dimensions, got {embeddings.shape[1]}")
    return embeddings, dense_labels(labels, classes), per_class.to(embeddings.dtype)


def positive_number(**settings: float) -> None:
    """Raises an error if a setting is not a positive number.

    >>> positive_number(alpha=0.0)
    Traceback (most recent call last):
    nearkin.errors.UserError: alpha must be a finite number > 0, got 0.0
    """
    for name, value in settings.items():
        if not 0 < value < math.inf:
            raise UserError(f"{name} must be a finite number > 0, got {value}")


def not_negative(**settings: float) -> None:
    """Raises an error if a setting is negative.

    >>> not_negative(nu=-1.0)
    Traceback (most recent call last):
    nearkin.errors.UserError: nu must be a finite number >= 0, got -1.0
    """
    for name, value in settings.items():
        if not 0 <= value < math.inf:
            raise UserError(f"{name} must be a finite number >= 0, got {value}")


def full_precision(embeddings: Tensor) -> AbstractContextManager[Any]:
    """Turns autocast off on the embeddings' device."""
    return torch.autocast(embeddings.device.type, enabled=False)


def zero_loss(embeddings: Tensor) -> Tensor:
    """The loss of a batch with nothing to compare: 0, with a zero gradient.

    >>> zero_loss(torch.ones(2, 3, requires_grad=True))
    tensor(0., grad_fn=<SumBackward0>)
    """
    return embeddings[:0].sum()


def group_means(rows: Tensor, group: Tensor, sizes: Tensor) -> Tensor:
    """Averages the rows of each group, (batch, dim) to (groups, dim); the mean of an empty group is 0.

    ``group`` is the group of each row, 0…groups−1; ``sizes`` is the number of rows in each group.

    >>> group_means(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 1]), torch.tensor([2, 1])).tolist()
    [[2.0], [5.0]]
    """
    return rows.new_zeros(len(sizes), rows.shape[1]).index_add(0, group, rows) / sizes.clamp(min=1)[:, None]


def numbered(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Renumbers ids as 0, 1, … in ascending order, (batch,), and counts each of them.

    If shapes must not depend on the data (see `reads_data`), the counts are padded with 0 to (batch,).

    >>> numbered(torch.tensor([7, 5, 7]))
    (tensor([1, 0, 1]), tensor([1, 2]))
    """
    if reads_data():
        _, number, counts = ids.unique(return_inverse=True, return_counts=True)
        return number, counts
    in_order, order = ids.sort(stable=True)
    steps = torch.cat([in_order.new_zeros(1), (in_order[1:] != in_order[:-1]).long()])
    number = torch.empty_like(ids).scatter(0, order, steps.cumsum(0))
    return number, torch.zeros_like(ids).scatter_add(0, number, torch.ones_like(ids))


Gradients = TypeVar("Gradients")


def once_differentiable(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """Makes the ``backward`` of an autograd function raise an error if it is differentiated again.

    torch's decorator of this name raises no error if the incoming gradient is a constant, as it is for a loss, and the
    second derivative is then wrong.
    """

    @wraps(backward)
    def once(ctx: Any, *gradients: Tensor | None) -> Gradients:
        if torch.is_grad_enabled() and not is_compiling():
            raise UserError("this loss has no second derivative; remove create_graph=True")
        return backward(ctx, *gradients)

    return once
