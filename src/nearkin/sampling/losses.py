"""The losses of single items, remembered for samplers that draw by them (paper: Magnet, 3.2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nearkin.sampling.base import Indices

Losses = npt.NDArray[np.float64]

LAG = 33  # steps until a loss counts: batches are read up to 32 ahead, and must not depend on how far that really is


class CachedLosses:
    """The latest known loss of every item, NaN where there is none; a loss of 0 is known like any other.

    A batch may be drawn while those before it are still in training. So that it is the same however far the reading is
    ahead, and after a stop, it is drawn by the losses of batches at least ``LAG`` steps before it.

    >>> losses = CachedLosses(items=2)
    >>> losses.hear(0, np.array([1]), np.array([0.5]))
    >>> losses.known_at(LAG - 1), losses.known_at(LAG)
    (array([nan, nan]), array([nan, 0.5]))
    """

    def __init__(self, items: int) -> None:
        self.settled: Losses = np.full(items, np.nan)
        self.recent: list[tuple[int, Indices, Losses]] = []

    def hear(self, step: int, items: Indices, losses: Losses) -> None:
        """Takes note of what a step found; steps must come in order."""
        self.recent.append((step, items, losses))
        # The next batch to be drawn is at least the one after this.
        self._settle(step + 1 - LAG)

    def catch_up(self) -> None:
        """Settles everything: between this step and the next nothing is drawn ahead."""
        if self.recent:
            self._settle(self.recent[-1][0])

    def known_at(self, step: int) -> Losses:
        """(items,) what the batch of a step is drawn by."""
        known = self.settled.copy()
        for heard_at, items, losses in self.recent:
            if heard_at <= step - LAG:
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
