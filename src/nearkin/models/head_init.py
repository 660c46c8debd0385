"""Initialises a head with the main directions of a pretrained backbone's features.

A random head loses information before training starts: on unseen classes, its embeddings are clearly worse than the
features. The top right-singular vectors of the training features (not centred, not whitened) keep nearly all of the
information in a few hundred dimensions.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from nearkin.models.model import Head

MAX_ITEMS = 20_000  # more items hardly change the directions of a few thousand features
RANK = 1e-12  # share of the largest eigenvalue; smaller ones are rounding errors
SMALL = 1e-2  # length of the random rows beyond the width of the features


@torch.no_grad()
def init_head(head: Head, features: npt.NDArray[np.float32], seed: int = 0) -> None:
    """Sets the head's weights to the main directions of ``features`` (items, width), strongest first, its bias to 0.

    With several learners, a random rotation mixes the directions, so that every slice represents the whole embedding.
    Without it, the first slice would get the mean of all features, which does not distinguish items. The rotation does
    not change distances in the whole embedding.

    >>> head = Head(features=3, dim=2, normalize="never")
    >>> init_head(head, np.array([[9.0, 0.0, 0.0], [0.0, 5.0, 0.0], [0.0, 0.0, 1.0]], dtype=np.float32))
    >>> head(torch.tensor([[9.0, 5.0, 1.0]])).tolist()
    [[9.0, 5.0]]
    """
    generator = np.random.default_rng(seed)
    if len(features) > MAX_ITEMS:
        features = features[np.sort(generator.choice(len(features), MAX_ITEMS, replace=False))]
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

    There are no more than the rank of the features. They are computed from ``features.T @ features``, which is small.
    The sign, which is arbitrary, makes the largest component positive.
    """
    features = features.double()
    values, vectors = torch.linalg.eigh(features.T @ features)
    spanned = int((values > RANK * values[-1]).sum())
    found: Tensor = vectors.flip(1).T[: min(count, spanned)]
    largest = found.gather(1, found.abs().argmax(1, keepdim=True))
    return found * largest.sign()


def _completed(directions: Tensor, dim: int, generator: np.random.Generator) -> Tensor:
    """(dim, width): adds random directions, orthogonal to all others; beyond the width, small random rows."""
    found, width = directions.shape
    free = torch.from_numpy(generator.standard_normal((min(dim, width) - found, width)))
    free = torch.linalg.qr((free - free @ directions.T @ directions).T).Q.T
    rest = torch.from_numpy(generator.standard_normal((max(0, dim - width), width))) * (SMALL / math.sqrt(width))
    return torch.cat([directions, free, rest])
