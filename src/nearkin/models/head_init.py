"""A head that starts from the data: the main directions of a pretrained backbone's features.

A random head throws part of the space away before training starts: on unseen classes its embedding is clearly worse
than the features it reads. The top right-singular vectors of the training features (not centred, not whitened) keep
nearly all of it in a few hundred dimensions.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from nearkin.models.model import Head

MOST_ITEMS = 20_000  # more change the directions of a few thousand features very little
RANK = 1e-12  # of the largest eigenvalue: what is below it is rounding
SMALL = 1e-2  # length of the rows beyond the width of the features: they start small and random


@torch.no_grad()
def init_head(head: Head, features: npt.NDArray[np.float32], seed: int = 0) -> None:
    """Sets the head's weights to the main directions of ``features`` (items, width), strongest first, without a bias.

    For several learners the directions are mixed by a random rotation, so that each slice is a fair view of the whole;
    otherwise the first would get the mean of all features, which tells nothing apart. Joined, the slices have the same
    distances as without.

    >>> head = Head(features=3, dim=2, normalize="never")
    >>> init_head(head, np.array([[9.0, 0.0, 0.0], [0.0, 5.0, 0.0], [0.0, 0.0, 1.0]], dtype=np.float32))
    >>> head(torch.tensor([[9.0, 5.0, 1.0]])).tolist()
    [[9.0, 5.0]]
    """
    generator = np.random.default_rng(seed)
    if len(features) > MOST_ITEMS:
        features = features[np.sort(generator.choice(len(features), MOST_ITEMS, replace=False))]
    learners = [project for project in head.project if isinstance(project, nn.Linear)]
    dim = sum(project.out_features for project in learners)
    directions = _completed(main_directions(torch.tensor(features), dim), dim, generator)
    if len(learners) > 1:
        rotation, _ = np.linalg.qr(generator.standard_normal((dim, dim)))
        directions = torch.from_numpy(rotation) @ directions
    for project, own in zip(learners, directions.chunk(len(learners)), strict=True):
        project.weight.copy_(own)
        project.bias.zero_()


def main_directions(features: Tensor, count: int) -> Tensor:
    """(at most count, width) the top right-singular vectors of features (items, width), in float64.

    No more than the features span. They are found from the product of the features with themselves, which is small.
    Each points to where its largest component is positive, because the sign is arbitrary.
    """
    features = features.double()
    values, vectors = torch.linalg.eigh(features.T @ features)
    spanned = int((values > RANK * values[-1]).sum())
    found: Tensor = vectors.flip(1).T[: min(count, spanned)]
    largest = found.gather(1, found.abs().argmax(1, keepdim=True))
    return found * largest.sign()


def _completed(directions: Tensor, dim: int, generator: np.random.Generator) -> Tensor:
    """(dim, width): random directions at right angles to all others come after them; beyond the width, small ones."""
    found, width = directions.shape
    free = torch.from_numpy(generator.standard_normal((min(dim, width) - found, width)))
    free = torch.linalg.qr((free - free @ directions.T @ directions).T).Q.T
    rest = torch.from_numpy(generator.standard_normal((max(0, dim - width), width))) * (SMALL / math.sqrt(width))
    return torch.cat([directions, free, rest])
