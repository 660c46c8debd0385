"""From item numbers to input tensors: files through worker processes, arrays straight from memory.

What a batch holds depends only on the item numbers and the seeds, never on workers or on what was read before, so a
run can be stopped and continued anywhere.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nearkin.data.decoded import cut
from nearkin.data.images import Unreadable, read_image
from nearkin.data.items import DecodedImages, ImageArray, ImageFiles, Indices, Items, Vectors
from nearkin.data.transforms import Preprocess, Transform, make_transform, seeded
from nearkin.errors import UserError
from nearkin.signals import block_signals

AHEAD = 32  # batches read before they are asked for, at most


@dataclass(frozen=True)
class Draw:
    """Which items to read, and the seed that their augmentation follows.

    ``place`` is where they begin in the global batch, so that it is augmented alike however many processes share it.
    """

    indices: Indices
    seed: int = 0
    place: int = 0


def input_batches(
    items: Items,
    preprocess: Preprocess | None,
    draws: Iterable[Draw],
    augment: str = "none",
    workers: int | None = None,
) -> Iterator[Tensor]:
    """Yields one input tensor per draw: (batch, channels, size, size) uint8 or (batch, features) float32.

    Draws are taken as they are needed, at most ``AHEAD`` before their tensor is.
    """
    if isinstance(items, Vectors):
        if preprocess is not None:
            raise UserError("this model reads images, but the data are feature vectors; choose other data or model")
        return (torch.from_numpy(items.values[draw.indices]) for draw in draws)
    if preprocess is None:
        raise UserError("this model reads feature vectors, but the data are images; choose an image backbone")
    if isinstance(items, DecodedImages):
        return (cut(items, draw.indices, preprocess.size, augment, draw.seed, draw.place) for draw in draws)
    if isinstance(items, ImageArray) and augment == "none" and _fits(items, preprocess):
        return (_pixels(items, draw.indices) for draw in draws)
    return _transformed(items, make_transform(preprocess, augment), draws, workers)


def sequential(count: int, batch_size: int) -> list[Draw]:
    """Every item once, in order."""
    return [Draw(np.arange(start, min(start + batch_size, count))) for start in range(0, count, batch_size)]


def _fits(items: ImageArray, preprocess: Preprocess) -> bool:
    side = preprocess.size
    return items.pixels.shape[1:3] == (side, side) and items.channels == preprocess.channels


def _pixels(items: ImageArray, indices: Indices) -> Tensor:
    chosen = torch.from_numpy(items.pixels[indices])
    return chosen.unsqueeze(1) if items.channels == 1 else chosen.permute(0, 3, 1, 2).contiguous()


class _Reader(torch.utils.data.Dataset[Tensor | Unreadable]):
    def __init__(self, items: ImageFiles | ImageArray, transform: Transform) -> None:
        self.items = items
        self.transform = transform

    def __getitem__(self, key: tuple[int, int]) -> Tensor | Unreadable:
        index, seed = key
        if isinstance(self.items, ImageArray):
            picture: Image.Image | Unreadable = Image.fromarray(self.items.pixels[index]).convert("RGB")
        else:
            picture = read_image(self.items.paths[index])
        return picture if isinstance(picture, Unreadable) else seeded(self.transform, picture, seed)


def _transformed(
    items: ImageFiles | ImageArray, transform: Transform, draws: Iterable[Draw], workers: int | None
) -> Iterator[Tensor]:
    if workers is None:
        workers = min(16, os.cpu_count() or 1) if isinstance(items, ImageFiles) else 0
    workers = min(workers, AHEAD)
    keys = ([(int(i), draw.seed + draw.place + n) for n, i in enumerate(draw.indices)] for draw in draws)
    loader = torch.utils.data.DataLoader(
        _Reader(items, transform),
        batch_sampler=keys,
        num_workers=workers,
        prefetch_factor=min(2, AHEAD // workers) if workers else None,
        collate_fn=_stack,
        generator=torch.Generator(),  # keeps the loader from consuming torch's global random state
    )
    with block_signals():  # the loop can only finish its step after Ctrl-C if the workers live on
        started = [iter(loader)]  # starts the workers, which end when the list is emptied
    # Python waits at its end for processes that are still there, and its request to end is a signal they never hear.
    atexit.register(started.clear)
    try:
        while (batch := next(started[0], None)) is not None:
            if isinstance(batch, Unreadable):
                raise UserError(f"{batch}; mend this file or leave it out")
            yield batch
    finally:
        started.clear()
        atexit.unregister(started.clear)


def _stack(batch: list[Tensor | Unreadable]) -> Tensor | Unreadable:
    """One tensor per batch, made in the worker: to send pictures one by one would keep the main process busy."""
    unreadable = next((picture for picture in batch if isinstance(picture, Unreadable)), None)
    return unreadable or torch.stack([picture for picture in batch if isinstance(picture, Tensor)])
