"""Decodes every image file once, for all runs on the same files, and keeps the images in device memory.

Augmented batches then cost almost nothing, whereas decoding in every epoch keeps many cores busy. The price: images are
cropped to a centre square first, so a random crop never sees anything outside it.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from nearkin.data import Dataset, ImageFiles
from nearkin.data.items import DecodedImages
from nearkin.data.loader import input_batches, sequential
from nearkin.data.transforms import PIXELS_VERSION, Preprocess
from nearkin.errors import ResourceError
from nearkin.files import atomic_path, cache_folder, one_at_a_time
from nearkin.progress import track
from nearkin.training.shared import DatasetSplits, rows_of, shared_files

BATCH = 64


def hold_decoded(
    first: Dataset, others: DatasetSplits, preprocess: Preprocess | None, device: torch.device, workers: int | None
) -> tuple[Dataset, DatasetSplits]:
    """The splits with their image files decoded; items of other types stay as they are."""
    files = shared_files([first, *others.values()])
    if preprocess is None or not len(files):
        return first, others
    squares = torch.from_numpy(np.load(_squares_file(files, preprocess, workers), mmap_mode="c"))
    try:
        squares = squares.to(device)
    except torch.OutOfMemoryError:
        needed = f"{squares.nbytes / 1e9:.1f} GB of decoded images"
        advice = "start fewer runs at a time, or leave out keep_decoded"
        raise ResourceError(f"{needed} do not fit in the device's free memory; {advice}") from None

    def held(split: Dataset) -> Dataset:
        if not isinstance(split.items, ImageFiles):
            return split
        return split.with_items(DecodedImages(split.items, squares, rows_of(split.items, files)))

    return held(first), {name: split and held(split) for name, split in others.items()}


def _squares_file(files: ImageFiles, preprocess: Preprocess, workers: int | None) -> Path:
    """A .npy file of (images, channels, side, side) bytes, where side is about the short side of a resized image.

    The side exceeds the network's input size by a multiple of 4, so that the centre crop of the square is exactly the
    centre crop of the image: halves are rounded to even numbers, and two crops must round like one.
    """
    square = replace(preprocess, size=preprocess.resize - (preprocess.resize - preprocess.size) % 4)
    key = hashlib.sha256(str((PIXELS_VERSION, files.fingerprint(), square)).encode()).hexdigest()
    target = cache_folder() / "decoded" / f"{key}.npy"
    with one_at_a_time(target):
        if target.exists():
            return target
        shape = (len(files), square.channels, square.size, square.size)
        draws = sequential(len(files), BATCH)
        # Written batch by batch: a full disk then raises an error, whereas a memory map would kill the process.
        with atomic_path(target) as partial, partial.open("wb") as stream:
            np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": shape})
            for batch in track(input_batches(files, square, draws, workers=workers), "decoding images", len(draws)):
                stream.write(batch.numpy().tobytes())
    return target
