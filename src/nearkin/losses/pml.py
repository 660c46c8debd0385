"""The losses of pytorch-metric-learning, by class name and with their own arguments.

Musgrave, Belongie, Lim: PyTorch Metric Learning, 2020. Formulas and edge cases are theirs. As for all losses here,
batches are checked and computed in full precision.
"""

from __future__ import annotations

import inspect
from typing import Any, Unpack

from torch import Tensor, nn

from nearkin.errors import UserError, unknown_name
from nearkin.fields import build
from nearkin.losses.base import Loss
from nearkin.losses.batch import Labels, checked, dense_labels, full_precision
from nearkin.losses.pairs import PairArguments

_BASE_CLASSES = {"BaseLossWrapper", "BaseMetricLossFunction", "GenericPairLoss"}
_WITHOUT_LABELS = {
    "ManifoldLoss": "learns without labels",
    "SelfSupervisedLoss": "compares two views of each item, without labels",
    "VICRegLoss": "compares two views of each item, without labels",
}


class PMLLoss(Loss):
    """A loss of pytorch-metric-learning, including its learnable parameters.

    Args:
        name: class name in ``pytorch_metric_learning.losses``.
        settings: arguments of that class. Pass distances, reducers, miners and other losses as objects.

    >>> PMLLoss("TripletMarginLoss", margin=0.1).loss.margin
    0.1
    """

    without_graph = "losses of pytorch-metric-learning read data on the host"

    def __init__(self, name: str, **settings: Any) -> None:
        super().__init__()
        if name in _WITHOUT_LABELS:
            raise UserError(f"loss 'pml:{name}' {_WITHOUT_LABELS[name]}; choose a loss that uses labels")
        known = pml_losses()
        if name not in known:
            raise unknown_name("loss", f"pml:{name}", [f"pml:{each}" for each in known])
        self.loss = build(known[name], settings, f"loss 'pml:{name}'")
        self.classes: int | None = settings.get("num_classes")
        self.needs_dense_labels = name == "SmoothAPLoss"  # it counts all labels from 0 to the largest

    def compute(self, embeddings: Tensor, labels: Labels, **pairs: Unpack[PairArguments]) -> Tensor:
        embeddings, labels = checked(embeddings, labels)
        if self.classes is not None:
            labels = dense_labels(labels, self.classes)
        if self.needs_dense_labels:
            labels = labels.unique(return_inverse=True)[1]
        with full_precision(embeddings):
            # Not every PML loss has all of these arguments.
            given = {name: value for name, value in pairs.items() if value is not None}
            loss: Tensor = self.loss(embeddings, labels, **given)
            return loss


def pml_losses() -> dict[str, type[nn.Module]]:
    """The losses of pytorch-metric-learning that take labels, by class name."""
    from pytorch_metric_learning import losses  # slow to import, and rarely needed

    classes = {name: kind for name, kind in vars(losses).items() if inspect.isclass(kind)}
    without = _BASE_CLASSES | _WITHOUT_LABELS.keys()
    return {name: kind for name, kind in classes.items() if issubclass(kind, nn.Module) and name not in without}


def for_pml(loss: nn.Module) -> nn.Module:
    """Wraps a nearkin loss so that pytorch-metric-learning's DistributedLossWrapper and CrossBatchMemory accept it.

    DistributedLossWrapper checks the base class; CrossBatchMemory checks the class name.

    >>> from nearkin.losses import RankApproximationLoss
    >>> from pytorch_metric_learning.losses import CrossBatchMemory
    >>> memory = CrossBatchMemory(for_pml(RankApproximationLoss()), embedding_size=64)
    """
    from pytorch_metric_learning.losses import BaseMetricLossFunction

    class ContrastiveLoss(BaseMetricLossFunction):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.loss = loss

        def forward(self, *batch: Any, **pairs: Any) -> Tensor:
            result: Tensor = self.loss(*batch, **pairs)
            return result

    return ContrastiveLoss()
