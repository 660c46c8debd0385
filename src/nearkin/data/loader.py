"""Turns item indices into input tensors: worker processes read files and objects; arrays come straight from memory.

A batch depends only on item indices and seeds, never on the workers or on what was read before, so a run can stop
and resume anywhere.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from nearkin.data.images import Unreadable
from nearkin.data.items import DecodedImages, ImageArray, ImageFiles, Images, Indices, Items, LazyImages, Vectors
from nearkin.data.transforms import Preprocess, Transform, make_transform, seeded
from nearkin.errors import UserError
from nearkin.progress import track
from nearkin.signals import block_signals

T = TypeVar("T")
AHEAD = 32  # maximum number of batches read ahead
AT_ONCE = 64  # items that a worker reads before it sends them


@dataclass(frozen=True)
class Draw:
    """Indices of the items in a batch and the seed of their augmentation.

    ``place`` is the position of the first item in the global batch, so that augmentation does not depend on the number
    of processes that share the batch.
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

    Consumes draws lazily, at most ``AHEAD`` ahead of the tensors.
    """
    if isinstance(items, Vectors):
        if preprocess is not None:
            raise UserError(
                "this model takes images, but the data are feature vectors; use other data or another model"
            )
        return (torch.from_numpy(items.values[draw.indices]) for draw in draws)
    if preprocess is None:
        raise UserError("this model takes feature vectors, but the data are images; use an image backbone")
    if isinstance(items, DecodedImages):
        return (crop(items, draw.indices, preprocess.size, augment, draw.seed, draw.place) for draw in draws)
    if isinstance(items, ImageArray) and augment == "none" and _fits(items, preprocess):
        return (_pixels(items, draw.indices) for draw in draws)
    return _transformed(items, make_transform(preprocess, augment), draws, workers)


def sequential(count: int, batch_size: int) -> list[Draw]:
    """Returns draws of every item once, in order."""
    return [Draw(np.arange(start, min(start + batch_size, count))) for start in range(0, count, batch_size)]


def each_item(read: Callable[[int], T], count: int, what: str) -> list[T]:
    """Returns ``read(0)`` … ``read(count - 1)`` from worker processes, with a progress bar; raises the first error."""
    found: list[T] = []
    draws = [draw.indices.tolist() for draw in sequential(count, AT_ONCE)]
    workers = min(_processes(), max(0, len(draws) - 1))  # a single batch is not worth a process
    for results in track(_in_workers(_Mapped(read), draws, workers, list), what, len(draws)):
        error = next((result for result in results if isinstance(result, UserError)), None)
        if error:
            raise error
        found += results
    return found


def crop(images: DecodedImages, indices: Indices, size: int, augment: str, seed: int, place: int = 0) -> Tensor:
    """Crops the centres ("none"), or random positions with random flips ("crop-flip"), on the images' device.

    Args:
        place: position of the first of these images in the batch that ``seed`` belongs to.

    Returns:
        (batch, channels, size, size) uint8.
    """
    squares = images.squares
    spare = squares.shape[-1] - size
    if augment == "none":
        start, flip = np.full((len(indices), 2), round(spare / 2)), np.zeros(len(indices), bool)
    else:
        chance = np.random.default_rng(seed).random((place + len(indices), 3))[place:]
        start, flip = np.floor(chance[:, :2] * (spare + 1)), chance[:, 2] < 0.5
    # One small copy to the device; the pixels' positions are computed there.
    crops = torch.from_numpy(np.column_stack([images.rows[indices], start, flip]).astype(np.int64))
    if squares.is_cuda:
        crops = crops.pin_memory()
    row, top, left, flipped = crops.to(squares.device, non_blocking=True)[:, :, None].unbind(dim=1)
    along = torch.arange(size, device=squares.device)
    lines, columns = top + along, left + torch.where(flipped > 0, size - 1 - along, along)
    channels = torch.arange(squares.shape[1], device=squares.device)
    return squares[row[:, None, None], channels[:, None, None], lines[:, None, :, None], columns[:, None, None]]


def _fits(items: ImageArray, preprocess: Preprocess) -> bool:
    side = preprocess.size
    return items.pixels.shape[1:3] == (side, side) and items.channels == preprocess.channels


def _pixels(items: ImageArray, indices: Indices) -> Tensor:
    chosen = torch.from_numpy(items.pixels[indices])
    return chosen.unsqueeze(1) if items.channels == 1 else chosen.permute(0, 3, 1, 2).contiguous()


class _Mapped(torch.utils.data.Dataset[Any]):
    """A function of an item's index, as a torch dataset; returns user errors, so that they can leave a worker."""

    def __init__(self, read: Callable[..., Any]) -> None:
        self.read = read

    def __getitem__(self, key: Any) -> Any:
        try:
            return self.read(key)
        except UserError as error:
            return error


@dataclass(frozen=True)
class _Reader:
    items: Images
    transform: Transform

    def __call__(self, key: tuple[int, int]) -> Tensor:
        index, seed = key
        with seeded(seed, everything=isinstance(self.items, LazyImages)):
            if isinstance(self.items, ImageFiles):
                image = self.items.image(index, self.transform.short)
            else:
                image = self.items.image(index)
            if isinstance(image, Unreadable):
                raise UserError(f"{image}; fix this file or leave it out")
            return self.transform(image)


def _transformed(items: Images, transform: Transform, draws: Iterable[Draw], workers: int | None) -> Iterator[Tensor]:
    if workers is None:
        workers = _processes() if isinstance(items, ImageFiles | LazyImages) else 0
    keys = ([(int(i), draw.seed + draw.place + n) for n, i in enumerate(draw.indices)] for draw in draws)
    for batch in _in_workers(_Mapped(_Reader(items, transform)), keys, min(workers, AHEAD), _stack):
        if isinstance(batch, UserError):
            raise batch
        yield batch


def _processes() -> int:
    return min(16, os.cpu_count() or 1)


def _in_workers(
    dataset: _Mapped, batches: Iterable[list[Any]], workers: int, collate: Callable[[list[Any]], T]
) -> Iterator[T]:
    """Yields the workers' result for each batch of keys, in order; the workers end with the iterator."""
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_sampler=batches,
        num_workers=workers,
        prefetch_factor=min(2, AHEAD // workers) if workers else None,
        collate_fn=collate,
        generator=torch.Generator(),  # keeps the loader from consuming torch's global random state
    )
    with block_signals():  # after Ctrl-C, the training loop needs the workers to finish its step
        started = [iter(loader)]  # starts the workers; emptying the list ends them
    # At exit, Python waits for processes that still run, and the signal it sends to end them is blocked.
    atexit.register(started.clear)
    try:
        while (batch := next(started[0], None)) is not None:
            yield batch
    finally:
        started.clear()
        atexit.unregister(started.clear)


def _stack(batch: list[Tensor | UserError]) -> Tensor | UserError:
    """Stacks a batch in the worker: receiving images one by one would keep the main process busy."""
    error = next((image for image in batch if isinstance(image, UserError)), None)
    return error or torch.stack([image for image in batch if isinstance(image, Tensor)])
