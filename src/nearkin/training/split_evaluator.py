"""Scores of a run's splits with the current model; a split is embedded only once until the model changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nearkin.data import Dataset
from nearkin.methods import Method
from nearkin.space import Space
from nearkin.training.scoring import score_space

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class SplitEvaluator:
    """Evaluates splits, and keeps the last embedded one until `clear` is called."""

    def __init__(self, fabric: Fabric, method: Method) -> None:
        self.fabric = fabric
        self.method = method
        self._embedded: tuple[str, Space, Space | None] | None = None

    def clear(self) -> None:
        """Drops the embedded split; call this when the model has changed."""
        self._embedded = None

    def scores(
        self, name: str, split: Dataset, train: Dataset, embed: Callable[[Dataset], Space], clustering: str | None
    ) -> dict[str, float]:
        """The scores of a split, including the method's read-out; the same in all processes."""
        if self._embedded is None or self._embedded[0] != name:
            self._embedded = name, embed(split), embed(train) if train.knows_classes_of(split) else None
        _, space, trained_on = self._embedded
        scores: dict[str, float] = {}
        if self.fabric.is_global_zero:
            scores = score_space(space, self.method, trained_on, clustering=clustering).scores
        found: dict[str, float] = self.fabric.broadcast(scores)
        return found
