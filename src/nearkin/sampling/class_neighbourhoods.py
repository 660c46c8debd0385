"""Batches of a class and its nearest classes, n items of each: Magnet's neighbourhoods for any loss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from nearkin.errors import UserError
from nearkin.sampling.base import Indices, Labels
from nearkin.sampling.groups import GroupSampler


class ClassNeighbourhoodSampler(GroupSampler):
    """Batches of k classes × n items: a seed class and its nearest other classes. Random classes fill the rest.

    Seeds come in random order; every class is the seed once before any class is the seed again, also across epochs.
    The probability of a class does not depend on its loss, so any loss can be trained (see `NeighbourhoodSampler`).

    A batch has at most half of all classes (or two), because otherwise there would be little to choose. Until `refresh`
    is called, all classes but the seed are random.

    >>> sampler = ClassNeighbourhoodSampler([0, 0, 1, 1, 2, 2], batch_size=4, per_class=2)
    >>> sampler.refresh(np.array([[1], [0], [1]]))
    >>> [sampler.labels[batch].tolist() in ([0, 0, 1, 1], [1, 1, 0, 0], [2, 2, 1, 1]) for batch in sampler]
    [True]
    """

    def __init__(self, labels: Labels, batch_size: int, per_class: int = 8, seed: int = 0) -> None:
        super().__init__(labels, batch_size, per_class, seed)
        half = self.largest_batch() // 2
        most = max(2 * per_class, half - half % per_class)
        if batch_size > most:
            raise UserError(
                f"a batch of {batch_size} has most of the {len(self.groups)} training classes, so it cannot be a "
                f"neighbourhood; use batch_size={most} or less"
            )
        self.classes_in_batch = -(-batch_size // per_class)
        self._seeds: dict[int, Indices] = {}
        self.refresh(np.empty((len(self.members), 0), dtype=np.int64))

    def refresh(self, impostors: Indices) -> None:
        """Draws these classes with each seed from now on.

        Args:
            impostors: (classes, n) the nearest other classes of each class, nearest first; −1 where there are fewer
                (`nearkin.clustering.nearest_in_other_groups`).
        """
        self.impostors = impostors

    def seed_of(self, step: int) -> int:
        """The seed class of the batch of a step; steps count from 0 over all epochs."""
        number, place = divmod(step, len(self.groups))
        if number not in self._seeds:  # cached, because every step of a round asks for it
            self._seeds = {number: np.random.default_rng((self.seed, number, 2)).permutation(self.groups)}
        return int(self._seeds[number][place])

    def batches(self, rng: np.random.Generator) -> Iterator[Indices]:
        return self.batches_from(0, rng)

    def batches_from(self, position: int, rng: np.random.Generator) -> Iterator[Indices]:
        for step, batch_rng in self.independent_draws(position, rng):
            classes = self._classes(self.seed_of(step), batch_rng)
            chosen: dict[int, Indices] = {}
            missing = self.batch_size
            while missing:
                if (group := next(classes)) not in chosen:
                    chosen[group] = self.draw(group, missing, batch_rng)
                    missing -= len(chosen[group])
            yield np.concatenate(list(chosen.values()))

    def _classes(self, seed: int, rng: np.random.Generator) -> Iterator[int]:
        """The seed and its nearest classes, then random ones without end."""
        near = self.impostors[seed]
        yield from (seed, *near[near >= 0].tolist())
        while True:
            yield int(rng.choice(self.groups))

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"impostors": torch.from_numpy(self.impostors)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.refresh(state["impostors"].cpu().numpy())
