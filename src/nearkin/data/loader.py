"""From item numbers to input tensors: files and objects through worker processes, arrays straight from memory.

What a batch holds depends only on the item numbers and the seeds, never on workers or on what was read before, so a
run can be stopped and continued anywhere.
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
AHEAD = 32  # batches read before they are asked for, at most
AT_ONCE = 64  # items that a worker reads before it hands them over


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


def each_item(read: Callable[[int], T], count: int, what: str) -> list[T]:
    """``read(0)`` … ``read(count - 1)``, by worker processes and with a bar; the first error is raised."""
    found: list[T] = []
    draws = [draw.indices.tolist() for draw in sequential(count, AT_ONCE)]
    workers = min(_processes(), max(0, len(draws) - 1))  # a single batch is not worth a process
    for results in track(_in_workers(_Mapped(read), draws, workers, list), what, len(draws)):
        error = next((result for result in results if isinstance(result, UserError)), None)
        if error:
            raise error
        found += results
    return found


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


def _fits(items: ImageArray, preprocess: Preprocess) -> bool:
    side = preprocess.size
    return items.pixels.shape[1:3] == (side, side) and items.channels == preprocess.channels


def _pixels(items: ImageArray, indices: Indices) -> Tensor:
    chosen = torch.from_numpy(items.pixels[indices])
    return chosen.unsqueeze(1) if items.channels == 1 else chosen.permute(0, 3, 1, 2).contiguous()


class _Mapped(torch.utils.data.Dataset[Any]):
    """A function of an item's number as a dataset; the user's mistakes are values, to travel out of a worker."""

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
            picture = self.items.picture(index)
            if isinstance(picture, Unreadable):
                raise UserError(f"{picture}; mend this file or leave it out")
            return self.transform(picture)


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
    """What the workers make of each batch of keys, in order; they end with the iterator."""
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_sampler=batches,
        num_workers=workers,
        prefetch_factor=min(2, AHEAD // workers) if workers else None,
        collate_fn=collate,
        generator=torch.Generator(),  # keeps the loader from consuming torch's global random state
    )
    with block_signals():  # the loop can only finish its step after Ctrl-C if the workers live on
        started = [iter(loader)]  # starts the workers, which end when the list is emptied
    # Python waits at its end for processes that are still there, and its request to end is a signal they never hear.
    atexit.register(started.clear)
    try:
        while (batch := next(started[0], None)) is not None:
            yield batch
    finally:
        started.clear()
        atexit.unregister(started.clear)


def _stack(batch: list[Tensor | UserError]) -> Tensor | UserError:
    """One tensor per batch, made in the worker: to send pictures one by one would keep the main process busy."""
    error = next((picture for picture in batch if isinstance(picture, UserError)), None)
    return error or torch.stack([picture for picture in batch if isinstance(picture, Tensor)])
