"""Contrastive loss.

Hadsell, Chopra, LeCun: Dimensionality Reduction by Learning an Invariant Mapping, 2006. ``squared=True`` is its Eq. 4.
The default is the form of pytorch-metric-learning: distances are not squared, and the mean is over pairs with a
non-zero loss, so that many easy negatives do not outweigh a few hard ones.

Deviations: the paper sums over given pairs. Here all pairs of the batch are used; positives and negatives are averaged
separately, and the two means are added. The mean over no pairs is 0. The paper does not normalise embeddings; here they
are normalised by default.
"""

from __future__ import annotations

from typing import Unpack

from torch import Tensor
from torch.nn import functional as F

from nearkin.losses.base import Loss
from nearkin.losses.batch import Labels, full_precision, positive_number
from nearkin.losses.distances import pairwise_distances
from nearkin.losses.pairs import PairArguments, compared
from nearkin.losses.registry import register_loss


def contrastive_loss(
    embeddings: Tensor,
    labels: Labels,
    margin: float = 1.0,
    normalize: bool = True,
    squared: bool = False,
    **pairs: Unpack[PairArguments],
) -> Tensor:
    """Pulls positive pairs together and pushes negative pairs apart, up to a margin.

    Args:
        embeddings: (batch, dim).
        labels: (batch,) integers.
        margin: m in Eq. 4; negative pairs farther apart than this have no loss.
        normalize: scale embeddings to unit length first.
        squared: average half the squared distances over all pairs (Eq. 4); otherwise, average the distances over the
            pairs that have a loss.
        pairs: ``indices_tuple``, ``ref_emb``, ``ref_labels``; see `Loss.forward`.

    Returns:
        A scalar.

    >>> import torch
    >>> points = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> contrastive_loss(points, torch.tensor([0, 0, 1, 1]), normalize=False).item()
    1.0
    """
    positive_number(margin=margin)
    batch = compared(embeddings, labels, **pairs, normalize=normalize)
    with full_precision(embeddings):
        distances = pairwise_distances(batch.embeddings, batch.references)
        pull = distances.where(batch.positive, 0.0)
        push = F.relu(margin - distances).where(batch.negative, 0.0)
        if squared:
            pull, push = pull.square() / 2, push.square() / 2
            counts = batch.positive.sum(), batch.negative.sum()
        else:
            counts = pull.count_nonzero(), push.count_nonzero()
        return pull.sum() / counts[0].clamp(min=1) + push.sum() / counts[1].clamp(min=1)


@register_loss("contrastive")
class ContrastiveLoss(Loss):
    """Contrastive loss (Hadsell et al. 2006): pulls positive pairs together, pushes negative pairs beyond a margin.

    Needs two or more items per class in a batch. Without positive pairs it only pushes; with one class it only pulls.

    >>> import torch
    >>> loss = ContrastiveLoss()(torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))
    >>> loss.shape
    torch.Size([])
    """

    def __init__(self, margin: float = 1.0, normalize: bool = True, squared: bool = False) -> None:
        super().__init__()
        positive_number(margin=margin)
        self.margin = margin
        self.normalize = normalize
        self.squared = squared

    def compute(self, embeddings: Tensor, labels: Labels, **pairs: Unpack[PairArguments]) -> Tensor:
        return contrastive_loss(embeddings, labels, self.margin, self.normalize, self.squared, **pairs)

    def extra_repr(self) -> str:
        return f"margin={self.margin}, normalize={self.normalize}, squared={self.squared}"
