"""Distance-weighted sampling: draws negatives uniformly over distances.

Wu, Manmatha, Smola, Krähenbühl: Sampling Matters in Deep Embedding Learning, 2017, section 4. The distances D of
uniformly distributed points on the unit sphere in n dimensions have density q(D) ∝ D^(n−2) (1 − D²/4)^((n−3)/2). A
negative is drawn with probability ∝ 1/q(D). Deviations: the paper bounds 1/q; here the distance is bounded from below,
as in the authors' code, but without their upper bound. 1 − D²/4 is kept above 0, for opposite points and for embeddings
that do not have unit length.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nearkin.losses.batch import Labels, positive_number
from nearkin.losses.distances import pairwise_squared_distances, widened
from nearkin.losses.pairs import Comparison, Triplets, compared, positive_columns

ANTIPODAL = 1e-8  # below this, 1 − D²/4 is a rounding error


def distance_weighted_sampling(embeddings: Tensor, labels: Labels, cutoff: float = 0.5) -> Triplets:
    """Draws one triplet for each ordered positive pair of the batch, with negatives weighted by distance.

    Uses torch's global generator. Without positive pairs or without negatives, there are no triplets.

    Args:
        embeddings: (batch, dim), of unit length in the paper.
        labels: (batch,) integers.
        cutoff: negatives closer than this are drawn as if they were at this distance.

    Returns:
        The rows of anchors, positives and negatives, (triplets,) each.

    >>> points = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> anchor, positive, negative = distance_weighted_sampling(points, torch.tensor([0, 0, 1]))
    >>> anchor.tolist(), positive.tolist(), negative.tolist()
    ([0, 1], [1, 0], [2, 2])
    """
    positive_number(cutoff=cutoff)
    batch = compared(embeddings, labels)
    partner, negative, valid = drawn_triplets(batch, pairwise_squared_distances(batch.embeddings), cutoff)
    anchor = torch.arange(len(partner), device=partner.device)[:, None].expand_as(partner)
    return anchor[valid], partner[valid], negative[valid]


def drawn_triplets(batch: Comparison, squared: Tensor, cutoff: float) -> tuple[Tensor, Tensor, Tensor]:
    """The columns of each anchor's positives, the column of one negative for each, and a mask of the valid triplets.

    All have shape (batch, most positives of an anchor). Anchors without negatives have no triplets. ``squared`` are the
    squared distances, (batch, references).
    """
    partner, valid = positive_columns(batch)
    valid = valid & batch.negative.any(dim=1, keepdim=True)
    draws = torch.multinomial(negative_probabilities(batch, squared, cutoff), partner.shape[1], replacement=True)
    return partner, draws, valid


@torch.no_grad()
def negative_probabilities(batch: Comparison, squared: Tensor, cutoff: float) -> Tensor:
    """P(negative | anchor), (batch, references); every row sums to 1, even for an anchor without negatives."""
    dim = batch.embeddings.shape[1]
    squared = widened(squared).clamp(min=cutoff**2)
    beyond = torch.rsub(squared, 1.0, alpha=0.25).clamp_(min=ANTIPODAL)  # 1 − D²/4
    log_weight = squared.log_().mul_(1 - dim / 2).add_(beyond.log_(), alpha=(3 - dim) / 2)
    drawable = batch.negative | ~batch.negative.any(dim=1, keepdim=True)
    return log_weight.masked_fill_(~drawable, -math.inf).softmax(dim=1)
