"""A head that starts from the data: the main directions of a pretrained backbone's features.

A random head throws part of the space away before training starts: on unseen classes its embedding is clearly worse
than the features it reads. The top right-singular vectors of the training features (not centred, not whitened) keep
nearly all of it in a few hundred dimensions.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from nearkin.models.model import Head

MOST_ITEMS = 20_000  # more change the directions of a few thousand features very little
SMALL = 1e-2  # of the other weights: where the embedding is longer than the features, the rest starts small and random


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
    directions = main_directions(torch.tensor(features), dim)
    if len(directions) < dim:
        rest = generator.standard_normal((dim - len(directions), directions.shape[1]))
        scale = SMALL / np.sqrt(directions.shape[1])
        directions = torch.cat([directions, torch.from_numpy(scale * rest).to(directions)])
    if len(learners) > 1:
        rotation, _ = np.linalg.qr(generator.standard_normal((dim, dim)))
        directions = torch.from_numpy(rotation) @ directions
    for project, own in zip(learners, directions.chunk(len(learners)), strict=True):
        project.weight.copy_(own)
        project.bias.zero_()


def main_directions(features: Tensor, count: int) -> Tensor:
    """(at most count, width) the top right-singular vectors of features (items, width), in float64.

    They are found from the product of the features with themselves, which is small. Each points to where its largest
    component is positive: the sign is arbitrary, and so the same on every machine.
    """
    features = features.double()
    vectors: Tensor = torch.linalg.eigh(features.T @ features).eigenvectors.flip(1).T[:count]
    largest = vectors.gather(1, vectors.abs().argmax(1, keepdim=True))
    return vectors * largest.sign()
