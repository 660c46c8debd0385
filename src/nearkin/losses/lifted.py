"""Lifted structure loss.

Song, Xiang, Jegelka, Savarese: Deep Metric Learning via Lifted Structured Feature Embedding, 2016, written as in Song,
Jegelka, Rathod, Murphy: Deep Metric Learning via Facility Location, 2017, Eq. 2. Embeddings are not normalised. The
loss of a batch without positive pairs or without negatives is 0; the paper does not define it.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from nearkin.losses.base import Loss
from nearkin.losses.batch import Labels, full_precision, positive_number
from nearkin.losses.distances import pairwise_distances
from nearkin.losses.pairs import PairArguments, compared, masked_logsumexp, positive_columns
from nearkin.losses.registry import register_loss


def lifted_structure_loss(
    embeddings: Tensor, labels: Labels, margin: float = 1.0, **pairs: Unpack[PairArguments]
) -> Tensor:
    """Compares each positive pair with all negatives of both items; the nearest negatives count most.

    Args:
        embeddings: (batch, dim), not normalised in the paper.
        labels: (batch,) integers.
        margin: α in Eq. 2.
        pairs: ``indices_tuple``, ``ref_emb``, ``ref_labels``; see `Loss.forward`. The negatives of
            a reference are the anchors in its negative pairs.

    Returns:
        A scalar.

    >>> points = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> near = lifted_structure_loss(points, torch.tensor([0, 0, 1, 1]))
    >>> far = lifted_structure_loss(points, torch.tensor([0, 1, 0, 1]))
    >>> bool(near < far)
    True
    """
    positive_number(margin=margin)
    batch = compared(embeddings, labels, **pairs)
    with full_precision(embeddings):
        distances = pairwise_distances(batch.embeddings, batch.references)
        negative = batch.negative
        push = other_push = masked_logsumexp(margin - distances, negative)
        if batch.references is not None:
            other_push = masked_logsumexp(margin - distances.T, negative.T)
        columns, valid = positive_columns(batch)  # each pair in both orders, which does not change the mean
        # `gather`, because the gradient of an index sorts all indices on a GPU.
        of_partners = other_push.expand_as(distances).gather(1, columns)
        violations = torch.logaddexp(push[:, None], of_partners) + distances.gather(1, columns)
        return F.relu(violations).masked_fill(~valid, 0.0).square().sum() / (2 * valid.sum().clamp(min=1))


@register_loss("lifted")
class LiftedStructureLoss(Loss):
    """Lifted structure loss (Song et al. 2016): compares each positive pair with all negatives of both items.

    Needs several items per class in a batch.

    >>> loss = LiftedStructureLoss()(torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))
    >>> loss.shape
    torch.Size([])
    """

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        positive_number(margin=margin)
        self.margin = margin

    def compute(self, embeddings: Tensor, labels: Labels, **pairs: Unpack[PairArguments]) -> Tensor:
        return lifted_structure_loss(embeddings, labels, self.margin, **pairs)

    def extra_repr(self) -> str:
        return f"margin={self.margin}"
