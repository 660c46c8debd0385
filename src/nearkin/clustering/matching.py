"""Matches the cluster numbers of two clusterings."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.errors import UserError


def match_clusters(clusters: Tensor, before: Tensor, k: int) -> Tensor:
    """Renumbers clusters (N,), 0…k−1, so that as many points as possible keep their number from ``before``.

    >>> match_clusters(torch.tensor([0, 0, 1, 2, 2]), torch.tensor([1, 1, 2, 0, 0]), k=3)
    tensor([1, 1, 2, 0, 0])
    """
    from scipy.optimize import linear_sum_assignment

    if clusters.shape != before.shape:
        raise UserError(
            f"clusters and before must have the same number of points, got {len(clusters)} and {len(before)}"
        )
    overlap = torch.bincount(clusters * k + before, minlength=k * k).view(k, k)
    numbers = torch.from_numpy(linear_sum_assignment(overlap.cpu().numpy(), maximize=True)[1])
    return numbers.to(clusters)[clusters]
