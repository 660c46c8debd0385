"""Renumbers a clustering like another, so that clusters with the same points have the same number."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.errors import UserError


def renamed_like(clusters: Tensor, before: Tensor, k: int) -> Tensor:
    """Renumbers clusters (N,), 0…k−1, so that as many points as possible keep the number that they had before.

    >>> renamed_like(torch.tensor([0, 0, 1, 2, 2]), torch.tensor([1, 1, 2, 0, 0]), k=3)
    tensor([1, 1, 2, 0, 0])
    """
    from scipy.optimize import linear_sum_assignment

    if clusters.shape != before.shape:
        raise UserError(f"clusterings of {len(clusters)} and {len(before)} points cannot be matched")
    overlap = torch.bincount(clusters * k + before, minlength=k * k).view(k, k)
    names = torch.from_numpy(linear_sum_assignment(overlap.cpu().numpy(), maximize=True)[1])
    return names.to(clusters)[clusters]
