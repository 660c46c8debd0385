"""Batches depend only on item indices and seeds."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from nearkin.data import ImageArray, ImageFiles, Vectors, load_dataset
from nearkin.data.loader import Draw, input_batches, keep_workers, sequential
from nearkin.data.transforms import Preprocess, make_transform
from nearkin.errors import UserError

SQUARE = Preprocess(size=16, resize=20, channels=3, mean=(0.5,) * 3, std=(0.5,) * 3)


def test_every_item_comes_once_in_order() -> None:
    assert np.concatenate([draw.indices for draw in sequential(10, 4)]).tolist() == list(range(10))


def test_files_become_bytes_of_the_requested_size(photos: Path) -> None:
    items = load_dataset(str(photos)).items
    batches = list(input_batches(items, SQUARE, sequential(len(items), 10)))
    assert [batch.shape for batch in batches] == [(10, 3, 16, 16)] * 3 + [(6, 3, 16, 16)]
    assert batches[0].dtype == torch.uint8


def test_augmentation_depends_on_the_seed_and_not_on_the_workers(photos: Path) -> None:
    items = load_dataset(str(photos)).items
    draws = [Draw(np.arange(8), seed) for seed in (5, 5, 6)]

    def augmented(workers: int) -> list[torch.Tensor]:
        return list(input_batches(items, SQUARE, draws, "crop-flip", workers))

    alone, helped = augmented(0), augmented(2)
    assert all(torch.equal(a, b) for a, b in zip(alone, helped, strict=True))
    assert torch.equal(alone[0], alone[1])
    assert not torch.equal(alone[0], alone[2])


def test_a_batch_is_augmented_the_same_in_one_process_or_two(photos: Path) -> None:
    items = load_dataset(str(photos)).items
    (whole,) = input_batches(items, SQUARE, [Draw(np.arange(8), 5)], "crop-flip", 0)
    shares = [Draw(np.arange(4), 5), Draw(np.arange(4, 8), 5, place=4)]
    assert torch.equal(torch.cat(list(input_batches(items, SQUARE, shares, "crop-flip", 0))), whole)


def test_augmentation_does_not_change_the_global_random_state(photos: Path) -> None:
    items = load_dataset(str(photos)).items
    before = torch.get_rng_state()
    list(input_batches(items, SQUARE, [Draw(np.arange(8), 3)], "resized-crop-flip", 0))
    assert torch.equal(before, torch.get_rng_state())


def test_arrays_of_the_right_size_are_passed_unchanged() -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (5, 16, 16, 3), dtype=np.uint8)
    (batch,) = input_batches(ImageArray(pixels), SQUARE, [Draw(np.array([4, 1]))])
    assert np.array_equal(batch.numpy().transpose(0, 2, 3, 1), pixels[[4, 1]])


def test_arrays_of_another_size_are_resized() -> None:
    grey = ImageArray(np.zeros((2, 9, 9), dtype=np.uint8))
    (batch,) = input_batches(grey, SQUARE, [Draw(np.array([0, 1]))])
    assert batch.shape == (2, 3, 16, 16)


def test_vectors_are_passed_unchanged() -> None:
    (batch,) = input_batches(Vectors(np.eye(3, dtype=np.float32)), None, [Draw(np.array([2]))])
    assert batch.tolist() == [[0.0, 0.0, 1.0]]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_damaged_during_a_run_gives_one_sentence(photos: Path, workers: int) -> None:
    items = load_dataset(str(photos)).items
    assert isinstance(items, ImageFiles)
    Path(items.paths[3]).write_bytes(b"broken")
    with pytest.raises(UserError, match=r"3\.png: not an image") as caught:
        list(input_batches(items, SQUARE, sequential(8, 4), workers=workers))
    assert "\n" not in str(caught.value)


def test_a_program_can_end_with_unread_batches(photos: Path) -> None:
    program = f"""
from nearkin.data import load_dataset
from nearkin.data.loader import input_batches, sequential
from nearkin.data.transforms import Preprocess

items = load_dataset({str(photos)!r}).items
batches = input_batches(items, {SQUARE!r}, sequential(len(items), 1), workers=2)
next(batches)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stderr == ""


def processes() -> set[int]:
    return {process.pid for process in multiprocessing.active_children() if process.pid}


def test_workers_stay_for_the_next_pass_and_give_the_same_batches(photos: Path) -> None:
    items = load_dataset(str(photos)).items
    train, test = items.take(np.arange(0, 8)), items.take(np.arange(4, 12))

    def passes(workers: int) -> tuple[list[Tensor], list[set[int]]]:
        batches: list[Tensor] = []
        running = []
        for split, augment, seed in [(train, "crop-flip", 1), (test, "none", 0), (train, "crop-flip", 2)]:
            draws = [Draw(np.arange(4), seed), Draw(np.arange(4, 8), seed)]
            batches += input_batches(split, SQUARE, draws, augment, workers)
            running.append(processes())
        return batches, running

    before, (expected, _) = processes(), passes(0)
    with keep_workers():
        found, running = passes(2)
        assert running[0] == running[1] == running[2] and len(running[0] - before) == 2
    assert processes() == before
    assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))
    assert passes(2)[1] == [before] * 3  # outside of the block, they end with their pass


def test_kept_workers_serve_one_pass_at_a_time_and_never_after_an_unfinished_one(photos: Path) -> None:
    items = load_dataset(str(photos)).items
    before = processes()
    with keep_workers():
        unfinished = input_batches(items, SQUARE, sequential(8, 1), workers=2)
        next(unfinished)
        with keep_workers():  # as in a run of a comparison
            (whole,) = input_batches(items, SQUARE, sequential(8, 8), workers=2)
        assert len(processes() - before) == 4
        unfinished.close()
        assert len(processes() - before) == 2
        (again,) = input_batches(items, SQUARE, sequential(8, 8), workers=2)
        assert torch.equal(whole, again)
    assert processes() == before


def test_crop_flip_varies_and_none_does_not() -> None:
    image = noise_image()
    for augment, distinct in (("none", 1), ("crop-flip", 8), ("resized-crop-flip", 8)):
        transform = make_transform(SQUARE, augment)
        results = {transform(image).numpy().tobytes() for _ in range(20)}
        assert (len(results) >= distinct) if distinct > 1 else len(results) == 1


def noise_image():  # type: ignore[no-untyped-def]
    from PIL import Image

    return Image.fromarray(np.random.default_rng(1).integers(0, 255, (30, 40, 3), dtype=np.uint8))


def test_an_unknown_augmentation_is_corrected() -> None:
    with pytest.raises(UserError, match="did you mean 'crop-flip'"):
        make_transform(SQUARE, "crop-flop")
