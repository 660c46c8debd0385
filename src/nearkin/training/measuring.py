"""The scores of a run's splits by the model as it is now; a split is embedded once, however often it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nearkin.data import Dataset
from nearkin.methods import Method
from nearkin.space import Space
from nearkin.training.scoring import score_space

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Measuring:
    """Remembers the split that was embedded last, until the model changes."""

    def __init__(self, fabric: Fabric, method: Method) -> None:
        self.fabric = fabric
        self.method = method
        self._embedded: tuple[str, Space, Space | None] | None = None

    def forget(self) -> None:
        """To be called when the model has changed."""
        self._embedded = None

    def scores(
        self, name: str, split: Dataset, train: Dataset, embed: Callable[[Dataset], Space], clustering: str | None
    ) -> dict[str, float]:
        """The scores of a split, with those of the method's own read-out, the same in all processes."""
        if self._embedded is None or self._embedded[0] != name:
            self._embedded = name, embed(split), embed(train) if train.knows_classes_of(split) else None
        _, space, trained_on = self._embedded
        scores: dict[str, float] = {}
        if self.fabric.is_global_zero:
            scores = score_space(space, self.method, trained_on, clustering=clustering).scores
        found: dict[str, float] = self.fabric.broadcast(scores)
        return found
