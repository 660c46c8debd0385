"""Images decoded once: the same squares as the transforms make, shared by all runs."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import TINY_GLYPHS
from PIL import Image

from nearkin.api import evaluate, make_settings
from nearkin.data import Dataset, ImageFiles, load_dataset
from nearkin.data.loader import input_batches, sequential
from nearkin.data.transforms import Preprocess
from nearkin.errors import Interrupted, UserError
from nearkin.methods import Batch
from nearkin.training import Run, Settings, decode, loop
from nearkin.training.decode import hold_decoded
from nearkin.training.loop import make_trainer

SQUARE = Preprocess(size=12, resize=16, channels=3, mean=(0.5,) * 3, std=(0.5,) * 3)
CPU = torch.device("cpu")


@pytest.fixture
def dataset(photos: Path) -> Dataset:
    return load_dataset(str(photos))


def test_decoded_images_are_those_that_files_give(dataset: Dataset) -> None:
    odd, even = dataset.take(np.arange(1, 36, 2)), dataset.take(np.arange(0, 36, 2))
    train, others = hold_decoded(odd, {"test": even, "validation": None}, SQUARE, CPU, 0)
    assert others["validation"] is None and others["test"] is not None
    for held, plain in ((train, odd), (others["test"], even)):
        draws = sequential(len(plain), 7)
        expected = torch.cat(list(input_batches(plain.items, SQUARE, draws, workers=0)))
        assert torch.equal(torch.cat(list(input_batches(held.items, SQUARE, draws))), expected)
        assert held.items.fingerprint() == plain.items.fingerprint()


@pytest.mark.parametrize("resize", range(12, 21))
def test_the_centre_is_the_same_whatever_is_left_around_it(tmp_path: Path, resize: int) -> None:
    rng = np.random.default_rng(resize)
    for number in range(12):
        pixels = rng.integers(0, 256, (24 + number, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels if number % 2 else pixels.swapaxes(0, 1)).save(tmp_path / f"{number}.png")
    files, square = ImageFiles(sorted(tmp_path.glob("*.png"))), replace(SQUARE, resize=resize)
    plain = Dataset("noise", files, np.zeros(12, dtype=np.int64), ["a"])
    held, _ = hold_decoded(plain, {}, square, CPU, 0)
    (expected,) = input_batches(files, square, sequential(12, 12), workers=0)
    (found,) = input_batches(held.items, square, sequential(12, 12))
    assert torch.equal(found, expected)


def test_augmentations_that_cannot_be_cut_are_refused_at_once(photos: Path) -> None:
    with pytest.raises(UserError, match=r"keep_decoded .* leave it out for resized-crop-flip"):
        make_settings(str(photos), "rank", {"keep_decoded": True, "augment": "resized-crop-flip"})


def test_other_divisions_of_the_same_files_are_not_decoded_again(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = dataset.take(np.arange(20)), dataset.take(np.arange(20, 36))
    hold_decoded(first, {"test": second}, SQUARE, CPU, 0)
    monkeypatch.setattr(decode, "input_batches", None)
    hold_decoded(second, {"test": first}, SQUARE, CPU, 0)


def test_of_several_that_need_them_one_decodes(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    decodings: list[int] = []

    def counted(*args: object, **options: object) -> object:
        decodings.append(1)
        return input_batches(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(decode, "input_batches", counted)
    with ThreadPoolExecutor(4) as pool:
        held = [pool.submit(hold_decoded, dataset, {}, SQUARE, CPU, 0) for _ in range(4)]
        assert all(len(each.result()[0]) == 36 for each in held)
    assert decodings == [1]


def test_arrays_stay_as_they_are() -> None:
    glyphs = load_dataset(TINY_GLYPHS)
    assert hold_decoded(glyphs, {}, SQUARE, CPU, 0)[0] is glyphs


def decoding(photos: Path) -> Settings:
    options = {"epochs": 2, "batch_size": 12, "per_class": 4, "dim": 4, "device": "cpu", "keep_decoded": True}
    return make_settings(str(photos), "triplet", options | {"backbone": "small", "image_size": 16})


def test_a_run_on_decoded_images_measures_what_its_saved_model_gives(photos: Path, tmp_path: Path) -> None:
    run = loop.train(decoding(photos), tmp_path / "run")
    again = evaluate(run, recall_at=(1,)).scores
    after = json.loads(run.scores_file.read_text())["after"]
    assert {name: after[name] for name in again if name in after} == pytest.approx(again)


def test_a_run_on_decoded_images_goes_on_where_it_was_stopped(photos: Path, tmp_path: Path) -> None:
    chosen = decoding(photos)
    whole = loop.train(chosen, tmp_path / "whole")
    broken = make_trainer(chosen, Run(tmp_path / "broken"))
    original = broken._step

    def step(batch: Batch) -> None:
        original(batch)
        broken._save_checkpoint()
        raise KeyboardInterrupt

    broken._step = step  # type: ignore[method-assign]
    with pytest.raises(Interrupted):
        broken.train()
    resumed = loop.resume(tmp_path / "broken")
    files = [run.model_folder / "model.safetensors" for run in (whole, resumed)]
    assert files[0].read_bytes() == files[1].read_bytes()
