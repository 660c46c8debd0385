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
READ_EVERY = 20  # steps on a GPU between two reads of the losses


def stop_unless_finite(loss: float, gradient_norm: float, step: int) -> None:
    """Stops training at the first NaN or infinity, before it reaches the weights."""
    for what, value in (("loss", loss), ("gradient", gradient_norm)):
        if not math.isfinite(value):
            raise UserError(
                f"the {what} became {value} at step {step}, so training stopped before updating the weights; "
                "lower the learning rate, use clip_norm=1.0, or check the data for extreme values"
            )


class StepMonitor:
    """Collects the losses and gradient norms of steps on the device, to be read every few steps.

    Reading waits for the GPU, so a step does not read. ``failed`` becomes 1 at the first step whose loss or
    gradient is NaN or infinite, and stays 1: optimisers that take it as ``found_inf`` then leave the weights alone.

    Attributes:
        failed: () float32, 0 or 1.
        embeddings: (batch, dim) of the latest step; None before the first one.

    >>> monitor = StepMonitor(torch.device("cpu"))
    >>> monitor.embeddings = torch.eye(2)
    >>> for loss in (1.0, 3.0):
    ...     monitor.add(torch.tensor(loss), torch.tensor(1.0), step=0)
    >>> monitor.read()[0]
    4.0
    """

    embeddings: Tensor | None = None

    def __init__(self, device: torch.device, loss_sum: float = 0.0) -> None:
        self.failed = torch.zeros((), device=device)
        self._loss_sum = torch.tensor(loss_sum, dtype=torch.float64, device=device)
        # Step, loss and gradient norm of the latest step, or of the first one that failed.
        self._latest = torch.zeros(3, dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, loss: Tensor, norm: Tensor, step: int) -> None:
        loss = loss.detach().double()
        latest = torch.stack([torch.full_like(loss, step), loss, norm.double()])
        self._latest = torch.where(self.failed > 0, self._latest, latest)
        self.failed = (~self._latest.isfinite().all()).float()
        self._loss_sum += loss

    def read(self) -> tuple[float, float]:
        """Returns the sum of all losses and the spread of the latest embeddings; raises if a step failed."""
        assert self.embeddings is not None
        values = torch.cat([self._latest, torch.stack([self._loss_sum, spread(self.embeddings).double()])])
        step, loss, norm, loss_sum, latest_spread = values.tolist()
        stop_unless_finite(loss, norm, int(step))
        return loss_sum, latest_spread


@torch.no_grad()
def spread(embeddings: Tensor) -> Tensor:
    """The distance of embeddings from their mean, relative to their length (both RMS); 0 if all are equal.

    >>> spread(torch.ones(4, 3))
    tensor(0.)
    """
    embeddings = embeddings.float()
    around_mean = (embeddings - embeddings.mean(dim=0)).square().sum(dim=1).mean().sqrt()
    length = embeddings.square().sum(dim=1).mean().sqrt()
    return around_mean / length.clamp(min=1e-12)


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
