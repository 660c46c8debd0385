"""Softmax loss: a linear classifier on the embeddings, the baseline of the Magnet paper (Rippel et al. 2016, 4.1)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from nearkin.losses.base import Loss
from nearkin.losses.batch import Labels, checked_for_classes, full_precision, positive_number
from nearkin.losses.registry import register_loss


def softmax_loss(embeddings: Tensor, labels: Labels, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Cross-entropy of a linear classifier.

    Args:
        embeddings: (batch, dim).
        labels: (batch,) integers in 0…classes−1.
        weight: (classes, dim).
        bias: (classes,); None: no bias.

    Returns:
        A scalar.

    >>> import torch
    >>> softmax_loss(torch.zeros(1, 2), torch.tensor([0]), torch.eye(2), torch.zeros(2)).item()
    0.6931471824645996
    """
    embeddings, labels, weight = checked_for_classes(embeddings, labels, weight)
    with full_precision(embeddings):
        offsets = None if bias is None else bias.to(embeddings.dtype)
        return F.cross_entropy(F.linear(embeddings, weight, offsets), labels)


@register_loss("softmax")
class SoftmaxLoss(Loss):
    """Softmax loss (Rippel et al. 2016): cross-entropy of a linear classifier on the embeddings.

    Needs the number of classes in advance and labels in 0…classes−1; works with any batches. The classifier is part of
    the loss: pass its parameters to the optimiser. Without a bias, it gives an embedding of any length the same class.

    >>> SoftmaxLoss(classes=3, dim=4)
    SoftmaxLoss(
      (classifier): Linear(in_features=4, out_features=3, bias=True)
    )
    """

    without_pairs = "it classifies item by item"

    def __init__(self, classes: int, dim: int, bias: bool = True) -> None:
        super().__init__()
        positive_number(classes=classes, dim=dim)
        self.classifier = nn.Linear(dim, classes, bias)

    def compute(self, embeddings: Tensor, labels: Labels) -> Tensor:
        return softmax_loss(embeddings, labels, self.classifier.weight, self.classifier.bias)
