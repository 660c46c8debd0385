"""Contrastive loss.

Hadsell, Chopra, LeCun: Dimensionality Reduction by Learning an Invariant Mapping, 2006, Eq. 4. Deviations: the paper
sums over the pairs it is given; here all pairs of a batch are taken, each kind is averaged over its own pairs and the
two means are added, so that the many negatives do not outweigh the few positives. A kind without pairs adds 0. The
paper does not normalise; here embeddings are brought to unit length unless told otherwise.
"""

from __future__ import annotations

from torch import Tensor, nn

from nearkin.losses.batch import checked, full_precision, positive_number, same_class_masks
from nearkin.losses.distances import pairwise_distances, unit_length


def contrastive_loss(embeddings: Tensor, labels: Tensor, margin: float = 1.0, normalize: bool = True) -> Tensor:
    """Draws positive pairs together, and pushes negative pairs apart until a margin lies between them.

    Args:
        embeddings: (batch, dim).
        labels: (batch,) integers.
        margin: m in Eq. 4, the distance from which negatives have no loss.
        normalize: Whether embeddings are brought to unit length first.

    Returns:
        A scalar.

    >>> import torch
    >>> points = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> contrastive_loss(points, torch.tensor([0, 0, 1, 1]), normalize=False).item()
    0.5
    """
    positive_number(margin=margin)
    embeddings, labels = checked(embeddings, labels)
    positive, negative = same_class_masks(labels)
    with full_precision(embeddings):
        distances = pairwise_distances(unit_length(embeddings) if normalize else embeddings)
        pull = distances[positive]
        push = margin - distances[negative.logical_and_(distances < margin)]
        negatives = distances.numel() - len(distances) - len(pull)
        return (pull.square().sum() / max(1, len(pull)) + push.square().sum() / max(1, negatives)) / 2


class ContrastiveLoss(nn.Module):
    """Contrastive loss (Hadsell et al. 2006): positives to one place, negatives beyond a margin, pair by pair.

    Needs two or more items per class in a batch; with none it only pushes, and with one class it only pulls.

    >>> import torch
    >>> loss = ContrastiveLoss()(torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))
    >>> loss.shape
    torch.Size([])
    """

    def __init__(self, margin: float = 1.0, normalize: bool = True) -> None:
        super().__init__()
        positive_number(margin=margin)
        self.margin = margin
        self.normalize = normalize

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return contrastive_loss(embeddings, labels, self.margin, self.normalize)

    def extra_repr(self) -> str:
        return f"margin={self.margin}, normalize={self.normalize}"
