"""Distance-weighted sampling: negatives drawn evenly over all distances, not mostly at the one where most points lie.

Wu, Manmatha, Smola, Krähenbühl: Sampling Matters in Deep Embedding Learning, 2017, section 4. Points spread evenly on
a unit sphere in n dimensions lie at distance D with density q(D) ∝ D^(n−2) (1 − D²/4)^((n−3)/2); a negative is drawn
with probability ∝ 1/q(D). Deviations: as in the authors' code the distance is cut off below where the paper cuts off
1/q; unlike it, there is no cut-off above; 1 − D²/4 is held above 0, for antipodes and for embeddings that are not of
unit length.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nearkin.losses.batch import Labels, positive_number
from nearkin.losses.distances import pairwise_squared_distances, widened
from nearkin.losses.pairs import Comparison, Triplets, compared, positive_columns

ANTIPODAL = 1e-8  # below this 1 − D²/4 is rounding


def distance_weighted_sampling(embeddings: Tensor, labels: Labels, cutoff: float = 0.5) -> Triplets:
    """One triplet for every ordered positive pair of the batch, its negative drawn by distance from the anchor.

    Draws from torch's global generator. Without positive pairs or without negatives there are no triplets.

    Args:
        embeddings: (batch, dim), of unit length in the paper.
        labels: (batch,) integers.
        cutoff: Negatives nearer than this are drawn as if they were at this distance.

    Returns:
        The rows of anchors, positives and negatives, (triplets,) each.

    >>> points = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> anchor, positive, negative = distance_weighted_sampling(points, torch.tensor([0, 0, 1]))
    >>> anchor.tolist(), positive.tolist(), negative.tolist()
    ([0, 1], [1, 0], [2, 2])
    """
    positive_number(cutoff=cutoff)
    partner, negative, there = drawn_triplets(compared(embeddings, labels), cutoff)
    anchor = torch.arange(len(partner), device=partner.device)[:, None].expand_as(partner)
    return anchor[there], partner[there], negative[there]


def drawn_triplets(batch: Comparison, cutoff: float) -> tuple[Tensor, Tensor, Tensor]:
    """The columns of each anchor's positives, those of a negative for each, and which of these are triplets.

    All are (batch, most positives of an anchor). Anchors without negatives have no triplets.
    """
    partner, there = positive_columns(batch.positive & batch.negative.any(dim=1, keepdim=True))
    draws = torch.multinomial(negative_probabilities(batch, cutoff), partner.shape[1], replacement=True)
    return partner, draws, there


@torch.no_grad()
def negative_probabilities(batch: Comparison, cutoff: float) -> Tensor:
    """P(negative | anchor), (batch, references); rows add up to 1, also those of anchors without negatives."""
    dim = batch.embeddings.shape[1]
    references = None if batch.references is None else widened(batch.references)
    squared = pairwise_squared_distances(widened(batch.embeddings), references).clamp_(min=cutoff**2)
    log_density = (dim - 2) / 2 * squared.log() + (dim - 3) / 2 * (1 - squared / 4).clamp_(min=ANTIPODAL).log_()
    drawable = batch.negative | ~batch.negative.any(dim=1, keepdim=True)
    return log_density.neg_().masked_fill_(~drawable, -math.inf).softmax(dim=1)
