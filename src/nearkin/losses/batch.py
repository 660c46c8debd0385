"""What every loss does first: check its batch, and compute in full precision even under autocast."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.errors import UserError


def checked(embeddings: Tensor, labels: Tensor) -> Tensor:
    """The embeddings of a valid batch, half precision raised to float32; otherwise an error that says what is wrong."""
    if embeddings.ndim != 2 or not embeddings.is_floating_point():
        raise UserError(
            f"embeddings must be floating point of shape (batch, dim), not {embeddings.dtype} {tuple(embeddings.shape)}"
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise UserError(f"labels must be integers, not {labels.dtype}")
    if labels.shape != embeddings.shape[:1]:
        raise UserError(f"{tuple(labels.shape)} labels do not match {len(embeddings)} embeddings")
    if len(embeddings) == 0:
        raise UserError("the batch is empty; a loss needs at least one embedding")
    return embeddings.float() if embeddings.dtype in (torch.float16, torch.bfloat16) else embeddings


def same_class_masks(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Which pairs are positive and which negative, (batch, batch) each; an item is neither to itself.

    >>> positive, negative = same_class_masks(torch.tensor([0, 0, 1]))
    >>> positive.int().tolist()
    [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    """
    same = labels[:, None] == labels[None, :]
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    return same & ~itself, ~same


def pairwise_distances(embeddings: Tensor) -> Tensor:
    """Euclidean distances within a batch, (batch, batch); the gradient at coincident points is zero.

    Differences are squared one by one: the matrix-product form is faster but loses half of the digits where points
    lie close together, which is where losses look.
    """
    return torch.cdist(embeddings, embeddings, compute_mode="donot_use_mm_for_euclid_dist")
