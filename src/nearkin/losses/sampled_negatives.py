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

from nearkin.losses.batch import checked, comparable, positive_number, same_class_masks
from nearkin.losses.distances import pairwise_squared_distances, widened

Triplets = tuple[Tensor, Tensor, Tensor]  # rows of the anchors, of their positives, and of their negatives

ANTIPODAL = 1e-8  # below this 1 − D²/4 is rounding


def distance_weighted_sampling(embeddings: Tensor, labels: Tensor, cutoff: float = 0.5) -> Triplets:
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
    embeddings, labels = checked(embeddings, labels)
    positive, negative = same_class_masks(labels)
    if not comparable(positive, negative):
        none = labels.new_empty(0, dtype=torch.long)
        return none, none, none
    anchor, partner = positive.nonzero(as_tuple=True)
    number = (positive.cumsum(dim=1) - 1)[anchor, partner]  # a positive's place among its anchor's
    probabilities = negative_probabilities(embeddings, negative, cutoff)
    draws = torch.multinomial(probabilities, int(number.max()) + 1, replacement=True)
    return anchor, partner, draws[anchor, number]


@torch.no_grad()
def negative_probabilities(embeddings: Tensor, negative: Tensor, cutoff: float) -> Tensor:
    """P(negative | anchor), (batch, batch) from a mask of negatives of which each row has some; rows add up to 1."""
    dim = embeddings.shape[1]
    squared = pairwise_squared_distances(widened(embeddings)).clamp_(min=cutoff**2)
    log_density = (dim - 2) / 2 * squared.log() + (dim - 3) / 2 * (1 - squared / 4).clamp_(min=ANTIPODAL).log_()
    return log_density.neg_().masked_fill_(~negative, -math.inf).softmax(dim=1)
