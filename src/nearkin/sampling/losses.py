"""A cache of the losses of single items, for samplers that draw by loss (Magnet paper, 3.2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nearkin.sampling.base import Indices

Losses = npt.NDArray[np.float64]

LAG = 33  # steps until a loss counts: up to 32 batches are read ahead, and must not depend on the actual number


class CachedLosses:
    """The latest known loss of every item; NaN if it is not known yet.

    Batches are drawn ahead, while earlier ones are still in training. So that batches do not depend on how far ahead
    they are drawn, or on a stop, each is drawn by losses that are at least ``LAG`` steps old.

    >>> losses = CachedLosses(items=2)
    >>> losses.hear(0, np.array([1]), np.array([0.5]))
    >>> losses.known_at(LAG - 1), losses.known_at(LAG)
    (array([nan, nan]), array([nan, 0.5]))
    """

    def __init__(self, items: int) -> None:
        self.settled: Losses = np.full(items, np.nan)
        self.recent: list[tuple[int, Indices, Losses]] = []

    def hear(self, step: int, items: Indices, losses: Losses) -> None:
        """Records the losses of a step; steps must come in order."""
        self.recent.append((step, items, losses))
        # The next batch to be drawn is at least the one after this.
        self._settle(step + 1 - LAG)

    def catch_up(self) -> None:
        """Makes all losses count at once; call it only if no batch is drawn ahead."""
        if self.recent:
            self._settle(self.recent[-1][0])

    def known_at(self, step: int) -> Losses:
        """(items,) the losses by which the batch of a step is drawn."""
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
