"""Detects NaN, collapse and Ctrl-C during training, and says what to do."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import torch
from torch import Tensor

from nearkin.errors import UserError

COLLAPSED = 0.01


def stop_unless_finite(loss: float, gradient_norm: float, step: int) -> None:
    """Stops training at the first NaN or infinity, before it reaches the weights."""
    for what, value in (("loss", loss), ("gradient", gradient_norm)):
        if not math.isfinite(value):
            raise UserError(
                f"the {what} became {value} at step {step}, so training stopped before updating the weights; "
                "lower the learning rate, use clip_norm=1.0, or check the data for extreme values"
            )


@torch.no_grad()
def spread(embeddings: Tensor) -> float:
    """The distance of embeddings from their mean, relative to their length (both RMS); 0 if all are equal.

    >>> spread(torch.ones(4, 3))
    0.0
    """
    embeddings = embeddings.float()
    around_mean = (embeddings - embeddings.mean(dim=0)).square().sum(dim=1).mean().sqrt()
    length = embeddings.square().sum(dim=1).mean().sqrt()
    return float(around_mean / length.clamp(min=1e-12))


def collapse_advice(spread: float) -> str:
    return (
        f"the embeddings are collapsing to one point (spread: {spread:.2%} of their length); "
        'lower the learning rate, use larger batches with more classes, or use normalize="always"'
    )


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Catches the first Ctrl-C (or SIGTERM), for the loop to check between steps; a second one kills."""
    requested = False
    previous: dict[int, signal._HANDLER] = {}

    def note(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        nonlocal requested
        requested = True
        restore()

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    if threading.current_thread() is threading.main_thread():
        previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: requested
    finally:
        restore()
