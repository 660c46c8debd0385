"""Cutting batches out of decoded images, on the device that holds them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from nearkin.data.items import DecodedImages, Indices


def cut(images: DecodedImages, indices: Indices, size: int, augment: str, seed: int, place: int = 0) -> Tensor:
    """(batch, channels, size, size) uint8: the centres (none), or cut anywhere and half of them mirrored (crop-flip).

    ``place`` is where these images begin in the batch that ``seed`` belongs to.
    """
    squares = images.squares
    rows = torch.from_numpy(images.rows[indices]).to(squares.device)
    spare = squares.shape[-1] - size
    if augment == "none":
        centre = slice(round(spare / 2), round(spare / 2) + size)
        return squares[rows, :, centre, centre]
    chance = np.random.default_rng(seed).random((place + len(indices), 3))[place:]
    corners = np.floor(chance[:, :2, None] * (spare + 1)).astype(np.int64) + np.arange(size)  # (batch, 2, size)
    corners[:, 1] = np.where(chance[:, 2:] < 0.5, corners[:, 1, ::-1], corners[:, 1])
    lines, columns = torch.from_numpy(corners).to(squares.device).unbind(dim=1)
    channels = torch.arange(squares.shape[1], device=squares.device)
    return squares[rows[:, None, None, None], channels[:, None, None], lines[:, None, :, None], columns[:, None, None]]
