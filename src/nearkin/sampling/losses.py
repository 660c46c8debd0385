"""A cache of per-item losses, for samplers that draw by loss (Magnet paper, 3.2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nearkin.sampling.base import Indices

Losses = npt.NDArray[np.float64]

# Steps until a loss is used. Up to 32 batches are read ahead, and the draws must not depend on how many.
LAG = 33


class CachedLosses:
    """The latest known loss of each item; NaN if it is not known yet.

    Batches are drawn ahead, while earlier ones are still being trained on. Each is drawn by losses that are at least
    ``LAG`` steps old, so that batches do not depend on how far ahead they are drawn, or on an interruption.

    >>> losses = CachedLosses(items=2)
    >>> losses.record(0, np.array([1]), np.array([0.5]))
    >>> losses.known_at(LAG - 1), losses.known_at(LAG)
    (array([nan, nan]), array([nan, 0.5]))
    """

    def __init__(self, items: int) -> None:
        self.settled: Losses = np.full(items, np.nan)
        self.recent: list[tuple[int, Indices, Losses]] = []

    def record(self, step: int, items: Indices, losses: Losses) -> None:
        """Records the losses of a step; steps must come in order."""
        self.recent.append((step, items, losses))
        # The next batch to be drawn is that of the next step, or a later one.
        self._settle(step + 1 - LAG)

    def catch_up(self) -> None:
        """Makes all recorded losses count immediately; call it only while no batch is drawn ahead."""
        if self.recent:
            self._settle(self.recent[-1][0])

    def known_at(self, step: int) -> Losses:
        """(items,) the losses that are used to draw the batch of a step."""
        known = self.settled.copy()
        for recorded_at, items, losses in self.recent:
            if recorded_at <= step - LAG:
                known[items] = losses
        return known

    def _settle(self, last: int) -> None:
        while self.recent and self.recent[0][0] <= last:
            _, items, losses = self.recent.pop(0)
            self.settled[items] = losses

    def state_dict(self) -> dict[str, Any]:
        recent = [(step, torch.from_numpy(items), torch.from_numpy(losses)) for step, items, losses in self.recent]
        return {"settled": torch.from_numpy(self.settled), "recent": recent}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.settled = state["settled"].cpu().numpy()
        self.recent = [(step, items.cpu().numpy(), losses.cpu().numpy()) for step, items, losses in state["recent"]]
