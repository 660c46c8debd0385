"""Margin loss: one learnt boundary β between the distances of positives and those of negatives.

Wu, Manmatha, Smola, Krähenbühl: Sampling Matters in Deep Embedding Learning, 2017, section 4. As in the authors' code
the sum is divided by the number of active terms, positive and negative terms counted apart, and distances are
√(|a − b|² + 10⁻⁸). Deviations: β is one number or one per class, not also one per image; without an active term the
loss is 0, the regulariser of β included.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nearkin.losses.batch import checked, dense_labels, full_precision, not_negative, positive_number
from nearkin.losses.distances import pairwise_squared_distances, unit_length
from nearkin.losses.sampled_negatives import Triplets, distance_weighted_sampling


def margin_loss(
    embeddings: Tensor, labels: Tensor, triplets: Triplets, beta: Tensor, margin: float = 0.2, nu: float = 0.0
) -> Tensor:
    """Wants positives nearer than β − margin to their anchor, and negatives farther than β + margin.

    Args:
        embeddings: (batch, dim), of unit length in the paper.
        labels: (batch,) integers; in 0…classes−1 if there is one β per class.
        triplets: The rows of anchors, positives and negatives, (triplets,) each.
        beta: β, () or (classes,); the class is the anchor's.
        margin: α in the paper.
        nu: ν in the paper, the weight of β itself, added once for each triplet.

    Returns:
        A scalar, with a gradient for the embeddings and for β.

    >>> points = torch.tensor([[0.0], [1.0], [3.0]])
    >>> one_triplet = (torch.tensor([0]), torch.tensor([1]), torch.tensor([2]))
    >>> loss = margin_loss(points, torch.tensor([0, 0, 1]), one_triplet, torch.tensor(1.0))
    >>> round(loss.item(), 4)  # only the positive pair is active
    0.2
    """
    positive_number(margin=margin)
    not_negative(nu=nu)
    embeddings, labels = checked(embeddings, labels)
    anchor, positive, negative = triplets
    if beta.ndim:
        beta = beta[dense_labels(labels, len(beta))[anchor]]
    with full_precision(embeddings):
        boundary = beta.to(embeddings).expand(len(anchor))
        squared = pairwise_squared_distances(embeddings)
        too_far = F.relu((squared[anchor, positive] + 1e-8).sqrt() - boundary + margin)
        too_near = F.relu(boundary - (squared[anchor, negative] + 1e-8).sqrt() + margin)
        active = too_far.count_nonzero() + too_near.count_nonzero()
        total = too_far.sum() + too_near.sum() + nu * boundary.sum()
        return torch.where(active > 0, total / active.clamp(min=1), 0.0)


class MarginLoss(nn.Module):
    """Margin loss with distance-weighted negatives (Wu et al. 2017): a learnt boundary between near and far.

    Needs several items per class in a batch. Draws its negatives from torch's global generator. β is a parameter: give
    ``loss.parameters()`` to the optimiser.

    >>> loss = MarginLoss()
    >>> loss(torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])).backward()
    >>> loss.beta.grad is not None
    True
    """

    def __init__(
        self,
        margin: float = 0.2,
        beta: float = 1.2,
        nu: float = 0.0,
        classes: int | None = None,
        cutoff: float = 0.5,
        normalize: bool = True,
    ) -> None:
        super().__init__()
        positive_number(margin=margin, beta=beta, cutoff=cutoff)
        not_negative(nu=nu)
        if classes is not None:
            positive_number(classes=classes)
        self.margin = margin
        self.nu = nu
        self.cutoff = cutoff
        self.normalize = normalize
        self.beta = nn.Parameter(torch.full(() if classes is None else (classes,), float(beta)))

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        embeddings, labels = checked(embeddings, labels)
        if self.normalize:
            embeddings = unit_length(embeddings)
        triplets = distance_weighted_sampling(embeddings, labels, self.cutoff)
        return margin_loss(embeddings, labels, triplets, self.beta, self.margin, self.nu)

    def extra_repr(self) -> str:
        classes = f"classes={len(self.beta)}, " if self.beta.ndim else ""
        return f"margin={self.margin}, nu={self.nu}, {classes}cutoff={self.cutoff}, normalize={self.normalize}"
