"""Turns item indices into input tensors: worker processes read files and objects; arrays come straight from memory.

A batch depends only on item indices and seeds, never on the workers or on what was read before, so a run can stop
and resume anywhere.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from nearkin.data.images import Unreadable, read_image
from nearkin.data.items import DecodedImages, ImageArray, ImageFiles, Images, Indices, Items, LazyImages, Vectors
from nearkin.data.transforms import Preprocess, Transform, make_transform, seeded
from nearkin.errors import UserError
from nearkin.progress import track
from nearkin.signals import block_signals

T = TypeVar("T")
AHEAD = 32  # maximum number of batches read ahead
AT_ONCE = 64  # items that a worker reads before it sends them
_kept: list[dict[tuple[int, bool], _Workers[Any]]] = []  # in a block of `keep_workers`: idle ones, by number and pin


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
    pin: bool = False,
) -> Iterator[Tensor]:
    """Yields one input tensor per draw: (batch, channels, size, size) uint8 or (batch, features) float32.

    Consumes draws lazily, at most ``AHEAD`` ahead of the tensors. With ``pin``, a thread moves what the workers read to
    pinned memory, from which a GPU copies while it computes.
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
    return _transformed(items, make_transform(preprocess, augment), draws, workers, pin)


@contextmanager
def keep_workers() -> Iterator[None]:
    """Within this block, the processes that read image files wait for the next call of `input_batches`.

    Without it, every call starts new ones.
    """
    if _kept:  # in the block of a caller, who ends them
        yield
        return
    _kept.append({})
    try:
        yield
    finally:
        for workers in _kept.pop().values():
            workers.close()


def sequential(count: int, batch_size: int) -> list[Draw]:
    """Returns draws of every item once, in order."""
    return [Draw(np.arange(start, min(start + batch_size, count))) for start in range(0, count, batch_size)]


def each_item(read: Callable[[int], T], count: int, what: str) -> list[T]:
    """Returns ``read(0)`` … ``read(count - 1)`` from worker processes, with a progress bar; raises the first error."""
    found: list[T] = []
    draws = [draw.indices.tolist() for draw in sequential(count, AT_ONCE)]
    workers = min(_processes(), max(0, len(draws) - 1))  # a single batch is not worth a process
    with closing(_Workers(read, workers, list)) as pool:
        for results in track(pool.results(draws), what, len(draws)):
            error = next((result for result in results if isinstance(result, UserError)), None)
            if error:
                raise error
            found += results
    return found


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copies a tensor to a device without waiting for it; from pinned memory, where that helps."""
    if device.type == "cuda" and not tensor.is_cuda:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


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
    row, top, left, flipped = to_device(crops, squares.device)[:, :, None].unbind(dim=1)
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


def _transformed(
    items: Images, transform: Transform, draws: Iterable[Draw], workers: int | None, pin: bool
) -> Iterator[Tensor]:
    if workers is None:
        workers = _processes() if isinstance(items, ImageFiles | LazyImages) else 0
    workers = min(workers, AHEAD)
    of_files, kind = isinstance(items, ImageFiles), (workers, pin)
    kept = next(iter(_kept), None) if of_files else None
    pool = None if kept is None else kept.pop(kind, None)
    pool = pool or _Workers(_Reader(None if of_files else items), workers, _stack, pin)
    places = items.paths if isinstance(items, ImageFiles) else range(len(items))
    keys = (
        [(places[i], transform, draw.seed + draw.place + n) for n, i in enumerate(draw.indices.tolist())]
        for draw in draws
    )
    try:
        for batch in pool.results(keys):
            if isinstance(batch, UserError):
                raise batch
            yield batch
    except BaseException:
        pool.close()
        raise
    if kept is not None and kept is next(iter(_kept), None) and kind not in kept:  # the block has not ended
        kept[kind] = pool
    else:
        pool.close()


@dataclass(frozen=True)
class _Reader:
    """Reads and transforms one image, in a worker. A key names a file, or an item of ``items``."""

    items: Images | None

    def __call__(self, key: tuple[Any, Transform, int]) -> Tensor:
        place, transform, seed = key
        with seeded(seed, everything=isinstance(self.items, LazyImages)):
            image = read_image(place, transform.short) if self.items is None else self.items.image(place)
            if isinstance(image, Unreadable):
                raise UserError(f"{image}; fix this file or leave it out")
            return transform(image)


def _processes() -> int:
    return min(16, os.cpu_count() or 1)


class _Workers(Generic[T]):
    """Processes that apply ``read`` to lists of keys; with ``count=0``, this process does it.

    They start with the first list and end with `close`.
    """

    def __init__(
        self, read: Callable[[Any], Any], count: int, collate: Callable[[list[Any]], T], pin: bool = False
    ) -> None:
        self._batches = _Batches()
        loader = torch.utils.data.DataLoader(
            _Mapped(read),
            batch_sampler=self._batches,
            num_workers=count,
            prefetch_factor=min(2, AHEAD // count) if count else None,
            persistent_workers=count > 0,
            pin_memory=pin,
            collate_fn=collate,
            generator=torch.Generator(),  # keeps the loader from consuming torch's global random state
        )
        self._running: list[Any] = [loader]  # and its iterator
        # At exit, Python waits for processes that still run, and the signal it sends to end them is blocked.
        atexit.register(self.close)

    def results(self, batches: Iterable[list[Any]]) -> Iterator[T]:
        """Yields the result for each list of keys, in order."""
        self._batches.coming = batches
        with block_signals():  # after Ctrl-C, the training loop needs the workers to finish its step
            self._running[1:] = [iter(self._running[0])]
        while (batch := next(self._running[1], None)) is not None:
            yield batch

    def close(self) -> None:
        for iterator in self._running[1:]:
            # torch does this when it frees the iterator, which the traceback of an error may keep.
            getattr(iterator, "_shutdown_workers", lambda: None)()
        self._running.clear()
        atexit.unregister(self.close)


class _Batches:
    """What a loader reads next: it takes no other lists of keys once it is made."""

    coming: Iterable[list[Any]] = ()

    def __iter__(self) -> Iterator[list[Any]]:
        return iter(self.coming)


class _Mapped(torch.utils.data.Dataset[Any]):
    """A function of a key, as a torch dataset; returns user errors, so that they can leave a worker."""

    def __init__(self, read: Callable[[Any], Any]) -> None:
        self.read = read

    def __getitem__(self, key: Any) -> Any:
        try:
            return self.read(key)
        except UserError as error:
            return error


def _stack(batch: list[Tensor | UserError]) -> Tensor | UserError:
    """Stacks a batch in the worker: receiving images one by one would keep the main process busy."""
    error = next((image for image in batch if isinstance(image, UserError)), None)
    return error or torch.stack([image for image in batch if isinstance(image, Tensor)])
