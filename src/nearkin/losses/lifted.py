"""Lifted structure loss.

Song, Xiang, Jegelka, Savarese: Deep Metric Learning via Lifted Structured Feature Embedding, 2016, written as in Song,
Jegelka, Rathod, Murphy: Deep Metric Learning via Facility Location, 2017, Eq. 2. Embeddings are not normalised. The
paper leaves two cases open; here a batch without positive pairs or without negatives has the loss 0.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nearkin.losses.batch import checked, comparable, full_precision, positive_number, same_class_masks, zero_loss
from nearkin.losses.distances import pairwise_distances


def lifted_structure_loss(embeddings: Tensor, labels: Tensor, margin: float = 1.0) -> Tensor:
    """Compares every positive pair with all negatives of both of its ends, the nearest weighing most.

    Args:
        embeddings: (batch, dim), not normalised in the paper.
        labels: (batch,) integers.
        margin: α in Eq. 2.

    Returns:
        A scalar.

    >>> points = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> near = lifted_structure_loss(points, torch.tensor([0, 0, 1, 1]))
    >>> far = lifted_structure_loss(points, torch.tensor([0, 1, 0, 1]))
    >>> bool(near < far)
    True
    """
    positive_number(margin=margin)
    embeddings, labels = checked(embeddings, labels)
    positive, negative = same_class_masks(labels)
    if not comparable(positive, negative):
        return zero_loss(embeddings)
    with full_precision(embeddings):
        distances = pairwise_distances(embeddings)
        push = (margin - distances).where(negative, -math.inf).logsumexp(dim=1)
        one, other = positive.triu().nonzero(as_tuple=True)
        violation = torch.logaddexp(push[one], push[other]) + distances[one, other]
        return F.relu(violation).square().mean() / 2


class LiftedStructureLoss(nn.Module):
    """Lifted structure loss (Song et al. 2016): every positive pair against all negatives of both ends.

    Needs several items per class in a batch.

    >>> loss = LiftedStructureLoss()(torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))
    >>> loss.shape
    torch.Size([])
    """

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        positive_number(margin=margin)
        self.margin = margin

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return lifted_structure_loss(embeddings, labels, self.margin)

    def extra_repr(self) -> str:
        return f"margin={self.margin}"
