"""Triplet loss with semi-hard negatives.

Schroff, Kalenichenko, Philbin: FaceNet, 2015, in the form of Song, Jegelka, Rathod, Murphy: Deep Metric Learning via
Facility Location, 2017, section 2.1. Distances are squared, pairs are ordered, and the mean includes pairs with a loss
of 0. Deviations: embeddings are normalised by default, as in FaceNet. The loss of a batch without positive pairs or
without negatives is 0; TensorFlow's function returns NaN or a meaningless value.
"""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from nearkin.losses.base import Loss
from nearkin.losses.batch import Labels, full_precision, positive_number
from nearkin.losses.distances import pairwise_squared_distances
from nearkin.losses.pairs import PairArguments, compared, positive_columns
from nearkin.losses.registry import register_loss


def triplet_semi_hard_loss(
    embeddings: Tensor,
    labels: Labels,
    margin: float = 0.2,
    normalize: bool = True,
    **pairs: Unpack[PairArguments],
) -> Tensor:
    """Pushes a semi-hard negative farther from the anchor than the positive is, by a margin.

    Each positive pair (anchor, positive) is compared with one negative: the nearest one that is strictly farther from
    the anchor than the positive, or the farthest negative if there is none. If a miner returns pairs, the negative is
    chosen among these; if it returns triplets, these are used as they are.

    Args:
        embeddings: (batch, dim).
        labels: (batch,) integers.
        margin: α in section 2.1, in squared distance.
        normalize: scale embeddings to unit length first.
        pairs: ``indices_tuple``, ``ref_emb``, ``ref_labels``; see `Loss.forward`.

    Returns:
        A scalar.

    >>> points = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> triplet_semi_hard_loss(points, torch.tensor([0, 0, 1, 1]), normalize=False).item()
    0.0
    >>> triplet_semi_hard_loss(points, torch.tensor([0, 1, 0, 1]), normalize=False).item() > 0
    True
    """
    positive_number(margin=margin)
    batch = compared(embeddings, labels, **pairs, normalize=normalize)
    with full_precision(embeddings):
        distances = pairwise_squared_distances(batch.embeddings, batch.references)
        if batch.triplets is not None:
            anchor, positive, negative = batch.triplets
            violations = F.relu(distances[anchor, positive] + margin - distances[anchor, negative])
            return violations.sum() / max(1, len(violations))
        columns, valid = positive_columns(batch)
        valid = valid & batch.negative.any(dim=1, keepdim=True)
        # Shorter rows are padded with −∞, which never has a loss.
        to_positives = distances.gather(1, columns).where(valid, -math.inf)
        to_negatives = distances.gather(1, _semi_hard(distances.detach(), batch.negative, to_positives.detach()))
        return F.relu(to_positives + margin - to_negatives).sum() / valid.sum().clamp(min=1)


@register_loss("triplet")
class TripletSemiHardLoss(Loss):
    """Triplet loss (Schroff et al. 2015): compares each positive pair with a semi-hard negative.

    Needs several items per class in a batch, and large batches: with more negatives, the chosen ones are harder.

    >>> loss = TripletSemiHardLoss()(torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))
    >>> loss.shape
    torch.Size([])
    """

    def __init__(self, margin: float = 0.2, normalize: bool = True) -> None:
        super().__init__()
        positive_number(margin=margin)
        self.margin = margin
        self.normalize = normalize

    def compute(self, embeddings: Tensor, labels: Labels, **pairs: Unpack[PairArguments]) -> Tensor:
        return triplet_semi_hard_loss(embeddings, labels, self.margin, self.normalize, **pairs)

    def extra_repr(self) -> str:
        return f"margin={self.margin}, normalize={self.normalize}"


def _semi_hard(distances: Tensor, negative: Tensor, to_positives: Tensor) -> Tensor:
    """The semi-hard negative of each positive, (batch, most positives) like ``to_positives``.

    Sorting the rows takes O(B² log B) time and O(B²) memory, whatever the number of positives.
    """
    ascending, order = distances.masked_fill(~negative, math.inf).sort(dim=1)
    beyond = torch.searchsorted(ascending, to_positives.contiguous(), right=True)
    farthest = (negative.sum(dim=1, keepdim=True) - 1).clamp(min=0)
    return order.gather(1, torch.minimum(beyond, farthest))
