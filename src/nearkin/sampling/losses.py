"""A cache of per-item losses, for samplers that draw by loss (Magnet paper, 3.2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.sampling.base import Indices, Members
from nearkin.sampling.cluster_losses import ClusterLosses
from nearkin.sampling.sum_tree import Numbers

# Steps until a loss is used. Up to 32 batches are read ahead, and the draws must not depend on how many.
LAG = 33


class HostCopy:
    """A tensor on its way to host memory; reading it waits for the copy, and not for later work of the GPU.

    >>> HostCopy(torch.tensor([0.5])).numpy()
    array([0.5], dtype=float32)
    """

    def __init__(self, tensor: Tensor) -> None:
        self._host = tensor.to("cpu", non_blocking=True)
        self._copied = torch.cuda.Event() if tensor.is_cuda else None
        if self._copied:
            self._copied.record()

    def numpy(self) -> Numbers:
        if self._copied:
            self._copied.synchronize()
        return self._host.numpy()


class CachedLosses:
    """The latest known loss of each item; NaN if it is not known yet.

    Batches are drawn ahead, while earlier ones are still being trained on. Each is drawn by losses that are at least
    ``LAG`` steps old, so that batches do not depend on how far ahead they are drawn, or on an interruption.

    >>> losses = CachedLosses(Members(np.array([0, 1])))
    >>> losses.record(0, np.array([1]), torch.tensor([0.5]))
    >>> [losses.known_at(step).is_known.tolist() for step in (LAG - 1, LAG)]
    [[False, False], [False, True]]
    """

    def __init__(self, clusters: Members) -> None:
        self.settled: Numbers = np.full(len(clusters.items), np.nan)
        self.recent: list[tuple[int, Indices, HostCopy]] = []
        self.regroup(clusters)

    def regroup(self, clusters: Members) -> None:
        """Takes the mean losses of these clusters from now on, and makes all recorded losses count immediately.

        Call it only while no batch is drawn ahead.
        """
        for _, items, losses in self.recent:
            self.settled[items] = losses.numpy()
        self.recent = []
        self.clusters = clusters
        self._restart()

    def record(self, step: int, items: Indices, losses: Tensor | Numbers) -> None:
        """Records the losses of a step, (items,) on any device; steps must come in order."""
        self.recent.append((step, items, HostCopy(torch.as_tensor(losses).detach().double())))
        last = step + 1 - LAG  # the next batch to be drawn is that of the next step, or a later one
        self._apply(last)
        while self.recent[0][0] <= last:
            _, items, copy = self.recent.pop(0)
            self.settled[items] = copy.numpy()
            self._applied -= 1

    def known_at(self, step: int) -> ClusterLosses:
        """The losses that are used to draw the batch of a step; the next call changes them."""
        if self._applied and self.recent[self._applied - 1][0] > step - LAG:  # it has drawn a later batch
            self._restart()
        self._apply(step - LAG)
        return self._known

    def _restart(self) -> None:
        self._known = ClusterLosses(self.clusters, self.settled)
        self._applied = 0  # the number of recent entries that ``_known`` includes

    def _apply(self, last: int) -> None:
        while self._applied < len(self.recent) and self.recent[self._applied][0] <= last:
            _, items, losses = self.recent[self._applied]
            self._known.update(items, losses.numpy())
            self._applied += 1

    def state_dict(self) -> dict[str, Any]:
        recent = [
            (step, torch.from_numpy(items), torch.from_numpy(losses.numpy())) for step, items, losses in self.recent
        ]
        return {"settled": torch.from_numpy(self.settled), "recent": recent}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.settled = state["settled"].cpu().numpy()
        self.recent = [(step, items.cpu().numpy(), HostCopy(losses)) for step, items, losses in state["recent"]]
        self._restart()
