"""What every loss does first: check its batch, and compute in full precision even under autocast."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from nearkin.errors import UserError


def checked(embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """A valid batch on one device, half precision raised to float32; otherwise an error that says what is wrong.

    >>> embeddings, labels = checked(torch.zeros(2, 3, dtype=torch.float16), torch.tensor([-7, 10**12]))
    >>> embeddings.dtype
    torch.float32
    """
    _check_is_tensor(embeddings, "embeddings")
    if embeddings.ndim != 2 or not embeddings.is_floating_point():
        raise UserError(
            f"embeddings must be floating point of shape (batch, dim), not {embeddings.dtype} {tuple(embeddings.shape)}"
        )
    labels = checked_ids(labels, embeddings, "labels")
    if embeddings.numel() == 0:
        raise UserError(f"the batch is empty: its embeddings have the shape {tuple(embeddings.shape)}")
    if not math.isfinite(torch.linalg.vector_norm(embeddings.detach(), math.inf).item()):
        raise UserError(
            "the embeddings contain NaN or infinite values; lower the learning rate, or look for odd values in the data"
        )
    return embeddings.float() if embeddings.dtype in (torch.float16, torch.bfloat16) else embeddings, labels


def checked_ids(ids: Tensor, embeddings: Tensor, name: str) -> Tensor:
    """One integer per embedding, on its device, as int64."""
    _check_is_tensor(ids, name)
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise UserError(f"{name} must be integers, not {ids.dtype}")
    if ids.shape != embeddings.shape[:1]:
        raise UserError(f"{name} of shape {tuple(ids.shape)} do not match {len(embeddings)} embeddings")
    return ids.to(embeddings.device, torch.long)


def _check_is_tensor(value: object, name: str) -> None:
    if not isinstance(value, Tensor):
        raise UserError(f"{name} must be a tensor, not {type(value).__name__}; try torch.as_tensor({name})")


def dense_labels(labels: Tensor, classes: int) -> Tensor:
    """Labels that number something learnt per class; an error where one has no class.

    >>> dense_labels(torch.tensor([0, 7]), classes=6)
    Traceback (most recent call last):
    nearkin.errors.UserError: labels must lie in 0…5 because this loss learns something for each class, but 7 is there
    """
    outside = labels[(labels < 0) | (labels >= classes)]
    if len(outside):
        raise UserError(
            f"labels must lie in 0…{classes - 1} because this loss learns something for each class, "
            f"but {int(outside[0])} is there"
        )
    return labels


def checked_for_classes(embeddings: Tensor, labels: Tensor, per_class: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A valid batch for a loss that learns a vector per class, (classes, dim), and these vectors in its precision.

    >>> _ = checked_for_classes(torch.zeros(1, 3), torch.tensor([0]), torch.zeros(6, 8))
    Traceback (most recent call last):
    nearkin.errors.UserError: this loss was built for embeddings of 8 dimensions, but they have 3
    """
    embeddings, labels = checked(embeddings, labels)
    classes, dim = per_class.shape
    if embeddings.shape[1] != dim:
        raise UserError(f"this loss was built for embeddings of {dim} dimensions, but they have {embeddings.shape[1]}")
    return embeddings, dense_labels(labels, classes), per_class.to(embeddings.dtype)


def positive_number(**settings: float) -> None:
    """Refuses a setting that is not a positive number.

    >>> positive_number(alpha=0.0)
    Traceback (most recent call last):
    nearkin.errors.UserError: alpha must be positive, not 0.0
    """
    for name, value in settings.items():
        if not 0 < value < math.inf:
            raise UserError(f"{name} must be positive, not {value}")


def not_negative(**settings: float) -> None:
    """Refuses a setting below 0.

    >>> not_negative(nu=-1.0)
    Traceback (most recent call last):
    nearkin.errors.UserError: nu must be a number from 0 on, not -1.0
    """
    for name, value in settings.items():
        if not 0 <= value < math.inf:
            raise UserError(f"{name} must be a number from 0 on, not {value}")


def full_precision(embeddings: Tensor) -> AbstractContextManager[Any]:
    """Switches autocast off for the device of the embeddings."""
    return torch.autocast(embeddings.device.type, enabled=False)


def same_class_masks(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Which pairs are positive and which negative, (batch, batch) each; an item is neither to itself.

    >>> positive, negative = same_class_masks(torch.tensor([0, 0, 1]))
    >>> positive.int().tolist()
    [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    """
    same = labels[:, None] == labels[None, :]
    positive = same.clone().fill_diagonal_(False)
    return positive, ~same


def comparable(positive: Tensor, negative: Tensor) -> bool:
    """Whether a batch has a positive pair and a negative one, from the masks of both.

    >>> comparable(*same_class_masks(torch.tensor([0, 0, 1]))), comparable(*same_class_masks(torch.tensor([0, 0])))
    (True, False)
    """
    return bool(positive.any() & negative.any())


def zero_loss(embeddings: Tensor) -> Tensor:
    """The loss of a batch with nothing to compare: 0, and backward() still works and gives a gradient of zeros.

    >>> zero_loss(torch.ones(2, 3, requires_grad=True))
    tensor(0., grad_fn=<SumBackward0>)
    """
    return embeddings[:0].sum()


def group_means(rows: Tensor, group: Tensor, sizes: Tensor) -> Tensor:
    """The mean row of each group, (batch, dim) to (groups, dim), for groups numbered 0…groups−1 of the given sizes.

    >>> group_means(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 1]), torch.tensor([2, 1])).tolist()
    [[2.0], [5.0]]
    """
    return rows.new_zeros(len(sizes), rows.shape[1]).index_add(0, group, rows) / sizes[:, None]


def classmates(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Row numbers of each item's class, (batch, size of the largest class), and which of them are other items.

    These are the positive pairs without a (batch, batch) mask. Smaller classes repeat their last row.

    >>> rows, others = classmates(torch.tensor([7, 5, 7]))
    >>> rows.tolist(), others.tolist()
    ([[0, 2], [1, 1], [0, 2]], [[False, True], [False, False], [True, False]])
    """
    order = labels.argsort(stable=True)
    in_order = labels[order]
    first, beyond = torch.searchsorted(in_order, labels), torch.searchsorted(in_order, labels, right=True)
    places = first[:, None] + torch.arange(int((beyond - first).max()), device=labels.device)
    rows = order[places.minimum(beyond[:, None] - 1)]
    others = (places < beyond[:, None]) & (rows != torch.arange(len(labels), device=labels.device)[:, None])
    return rows, others


Gradients = TypeVar("Gradients")


def once_differentiable(backward: Callable[[Any, Tensor], Gradients]) -> Callable[[Any, Tensor], Gradients]:
    """Makes the ``backward`` of an autograd function refuse to be differentiated itself.

    The decorator of this name in torch says nothing where the gradient that comes in is constant, as it is for a loss,
    and a second derivative is then silently wrong.
    """

    @wraps(backward)
    def once(ctx: Any, gradient: Tensor) -> Gradients:
        if torch.is_grad_enabled():
            raise UserError("this loss has no second derivative; leave out create_graph=True")
        return backward(ctx, gradient)

    return once
