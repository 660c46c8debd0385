"""Margin loss: a learnt boundary β between the distances of positive and of negative pairs.

Wu, Manmatha, Smola, Krähenbühl: Sampling Matters in Deep Embedding Learning, 2017, section 4. As in the authors' code,
the sum is divided by the number of active terms (the positive and the negative term of a triplet count separately), and
distances are √(|a − b|² + 10⁻⁸). Deviations: β is one number or one per class, but not one per image. If no term is
active, the whole loss is 0, including the regulariser of β.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nearkin.losses.base import Loss
from nearkin.losses.batch import Labels, dense_labels, full_precision, not_negative, positive_number
from nearkin.losses.distances import pairwise_squared_distances
from nearkin.losses.pairs import Comparison, PairArguments, Triplets, compared
from nearkin.losses.registry import register_loss
from nearkin.losses.sampled_negatives import drawn_triplets


def margin_loss(
    embeddings: Tensor, labels: Labels, triplets: Triplets, beta: Tensor, margin: float = 0.2, nu: float = 0.0
) -> Tensor:
    """Pulls positives closer to their anchor than β − margin and pushes negatives farther away than β + margin.

    Args:
        embeddings: (batch, dim), of unit length in the paper.
        labels: (batch,) integers; in 0…classes−1 if there is one β per class.
        triplets: the rows of anchors, positives and negatives, (triplets,) each.
        beta: β, () or (classes,); each triplet uses the β of its anchor's class.
        margin: α in the paper.
        nu: ν in the paper, the weight of β, added once per triplet.

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
    return _margin(compared(embeddings, labels, triplets), beta, margin, nu, cutoff=0.5)


@register_loss("margin")
class MarginLoss(Loss):
    """Margin loss (Wu et al. 2017): a learnt boundary between positives and negatives, distance-weighted sampling.

    Needs several items per class in a batch. Negatives are drawn with torch's global generator. If a miner returns
    pairs, negatives are drawn from these; if it returns triplets, these are used as they are. β is a parameter: pass
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

    def compute(self, embeddings: Tensor, labels: Labels, **pairs: Unpack[PairArguments]) -> Tensor:
        batch = compared(embeddings, labels, **pairs, normalize=self.normalize)
        return _margin(batch, self.beta, self.margin, self.nu, self.cutoff)

    def extra_repr(self) -> str:
        classes = f"classes={len(self.beta)}, " if self.beta.ndim else ""
        return f"margin={self.margin}, nu={self.nu}, {classes}cutoff={self.cutoff}, normalize={self.normalize}"


def _margin(batch: Comparison, beta: Tensor, margin: float, nu: float, cutoff: float) -> Tensor:
    """The loss of the given triplets, or of triplets drawn from the pairs."""
    boundary = beta[dense_labels(batch.labels, len(beta))] if beta.ndim else beta.expand(len(batch.labels))
    with full_precision(batch.embeddings):
        squared = pairwise_squared_distances(batch.embeddings, batch.references)
        boundary = boundary.to(squared)[:, None]
        if batch.triplets is None:
            positive, negative, valid = drawn_triplets(batch, squared, cutoff)
            to_positive, to_negative = squared.gather(1, positive), squared.gather(1, negative)
        else:
            anchor, positive, negative = batch.triplets
            to_positive, to_negative = squared[anchor, positive], squared[anchor, negative]
            boundary = boundary[anchor, 0]
            valid = torch.ones_like(anchor, dtype=torch.bool)
        too_far = F.relu((to_positive + 1e-8).sqrt() - boundary + margin).where(valid, 0.0)
        too_near = F.relu(boundary - (to_negative + 1e-8).sqrt() + margin).where(valid, 0.0)
        active = too_far.count_nonzero() + too_near.count_nonzero()
        total = (too_far + too_near + nu * boundary.where(valid, 0.0)).sum()
        return torch.where(active > 0, total / active.clamp(min=1), 0.0)
