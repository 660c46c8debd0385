"""Images and vectors in every form become the same input; anything else is refused in one sentence."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from nearkin.data.items import ImageArray, ImageFiles, Vectors
from nearkin.data.transforms import Preprocess, make_transform
from nearkin.errors import UserError
from nearkin.models import Embedder, EmbeddingModel, ModelSpec
from nearkin.models.inputs import read_inputs

COLOUR = Preprocess(size=16, resize=20, channels=3, mean=(0.5,) * 3, std=(0.5,) * 3)
GREY = Preprocess(size=16, resize=20, channels=1, mean=(0.5,), std=(0.5,))
RNG = np.random.default_rng(0)
LARGE = RNG.integers(0, 256, (30, 24, 3), dtype=np.uint8)  # to be resized
FITTING = RNG.integers(0, 256, (16, 16, 3), dtype=np.uint8)  # the model's input already


def images(model: Preprocess = COLOUR) -> Embedder:
    torch.manual_seed(0)
    return Embedder(EmbeddingModel(ModelSpec("small", 8, "always", model)))


def vectors() -> Embedder:
    torch.manual_seed(0)
    return Embedder(EmbeddingModel(ModelSpec("mlp", 3, features=4)))


def chw(pixels: Any) -> torch.Tensor:
    return torch.from_numpy(pixels).permute(2, 0, 1)


def one(data: Any, preprocess: Preprocess | None = COLOUR) -> torch.Tensor:
    """The input that one item becomes."""
    inputs = read_inputs(data, preprocess, batch_size=4)
    assert inputs.single and inputs.count == 1
    [batch] = inputs.batches
    return batch[0]


def test_an_image_to_be_resized_is_the_same_in_every_form(tmp_path: Path) -> None:
    Image.fromarray(LARGE).save(tmp_path / "x.png")
    expected = make_transform(COLOUR)(Image.fromarray(LARGE))
    for form in (tmp_path / "x.png", str(tmp_path / "x.png"), Image.fromarray(LARGE), LARGE, chw(LARGE)):
        assert torch.equal(one(form), expected)


def test_an_image_of_the_models_input_size_is_used_as_it_is() -> None:
    expected = chw(FITTING)
    assert torch.equal(one(FITTING), expected) and torch.equal(one(expected), expected)
    for scaled in (FITTING / 255, chw(FITTING) / 255, (chw(FITTING) / 255).requires_grad_()):
        torch.testing.assert_close(one(scaled), expected / 255)
    found = images().encode([FITTING, FITTING / 255, chw(FITTING), chw(FITTING).half() / 255])
    np.testing.assert_allclose(found, found[[0, 0, 0, 0]], atol=1e-2)
    np.testing.assert_allclose(found[:3], found[[0, 0, 0]], atol=1e-6)


@pytest.mark.parametrize("preprocess", [COLOUR, GREY], ids=["colour", "grey"])
def test_grey_images_need_no_channel_dimension(preprocess: Preprocess) -> None:
    grey = LARGE[..., 0]
    expected = make_transform(preprocess)(Image.fromarray(grey).convert("RGB"))
    for form in (grey, grey[..., None], torch.from_numpy(grey), torch.from_numpy(grey)[None]):
        assert torch.equal(one(form, preprocess), expected)
    fitting = FITTING[..., 0]
    if preprocess is GREY:
        assert torch.equal(one(fitting, GREY), torch.from_numpy(fitting)[None])
        torch.testing.assert_close(one(fitting / 255, GREY), torch.from_numpy(fitting)[None] / 255)


def test_transparent_arrays_get_a_white_background() -> None:
    clear = np.dstack([LARGE, np.zeros(LARGE.shape[:2], np.uint8)])
    assert (one(clear) == 255).all()


def test_images_of_mixed_kinds_keep_their_order(tmp_path: Path) -> None:
    embedder, path = images(), tmp_path / "x.png"
    Image.fromarray(LARGE).save(path)
    mixed = [path, Image.fromarray(FITTING), FITTING, chw(LARGE), str(path), FITTING / 255]
    expected = np.stack([embedder.encode(item) for item in mixed])
    assert expected.shape == (6, 8)
    for batch_size in (1, 4, 6):
        np.testing.assert_allclose(embedder.encode(mixed, batch_size), expected, atol=1e-6)
    np.testing.assert_allclose(embedder.encode(np.array([str(path)] * 2)), expected[[0, 0]], atol=1e-6)


def test_batches_are_sequences_of_items() -> None:
    embedder = images()
    stack = np.stack([FITTING, FITTING[::-1]])
    expected = np.stack([embedder.encode(each) for each in stack])
    nchw = torch.from_numpy(stack).permute(0, 3, 1, 2)
    for form in (stack, nchw, stack / 255, nchw / 255, ImageArray(stack)):
        np.testing.assert_allclose(embedder.encode(form), expected, atol=1e-6)
    greys = stack[..., 0]
    expected = np.stack([embedder.encode(each) for each in greys])
    for form in (greys, torch.from_numpy(greys), greys[..., None]):
        np.testing.assert_allclose(embedder.encode(form), expected, atol=1e-6)


def test_vectors_in_every_form() -> None:
    embedder, rows = vectors(), RNG.normal(size=(2, 4)).astype(np.float32)
    expected = embedder.encode(rows)
    assert expected.shape == (2, 3)
    ready = torch.from_numpy(rows)
    for form in (rows.tolist(), ready, [*rows], [*ready.requires_grad_()], rows.astype(object), Vectors(rows)):
        np.testing.assert_allclose(embedder.encode(form), expected, atol=1e-6)
    assert embedder.encode(torch.from_numpy(rows).bfloat16()).shape == (2, 3)
    for single in (rows[0], rows[0].tolist(), torch.from_numpy(rows[0])):
        np.testing.assert_allclose(embedder.encode(single), expected[0], atol=1e-6)
    assert embedder.encode(np.ones(4, int)).shape == (3,)


@pytest.mark.parametrize("nothing", [[], (), np.empty(0), np.empty((0, 4)), torch.empty(0, 4)], ids=str)
def test_an_empty_list_of_vectors_has_no_embeddings(nothing: Any) -> None:
    assert vectors().encode(nothing).shape == (0, 3)


@pytest.mark.parametrize("nothing", [[], np.empty((0, 16, 16, 3), np.uint8), ImageFiles([]), []], ids=str)
def test_an_empty_list_of_images_has_no_embeddings(nothing: Any) -> None:
    assert images().encode(nothing).shape == (0, 8)
    assert images().encode(nothing, convert_to_tensor=True).shape == (0, 8)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (iter([Path("x.png")]), r"got list_iterator; for an iterator, use encode\(list\(items\)\)"),
        (b"x.png", "one item or a list, got bytes"),
        (None, "got NoneType"),
        ({"a": LARGE}, "got dict"),
        ([Path("x.png"), b"x.png"], r"x\.png: no such file"),
        ([LARGE, b"x.png"], "item 1 is a bytes; use a path, a Pillow image, an array or a tensor"),
        ([LARGE, (LARGE, 3)], "item 1 is a tuple"),
        (np.array(3), r"an image array must have shape \(height, width, 3\) or \(height, width\), got \(\)"),
        (np.zeros(7, np.uint8), r"got \(7,\)"),
        (torch.zeros(2, 2, 3, 4, 5), r"\(3, height, width\) or \(height, width\), got \(2, 2, 3, 4, 5\)"),
        (torch.zeros(16, 16, 3), r"image tensor must have shape \(3, height, width\)"),
        (np.zeros((2, 3, 16, 16), np.uint8), r"image array must have shape \(height, width, 3\).* got \(3, 16, 16\)"),
        ([np.zeros((2, 16, 16, 3), np.uint8)], r"got \(2, 16, 16, 3\)"),
        (FITTING.astype(int), r"uint8 \(0…255\) or floating point \(0…1\), got int64"),
        (LARGE / 255, r"16 × 16 pixels and 3 channels, got \(30, 24, 3\); uint8 images are resized"),
        (FITTING.astype(float), r"must be in 0…1, got \d+…\d+; do not standardise them"),
        ((chw(FITTING) / 255 - 0.45) / 0.22, "do not standardise them"),
        (np.full((16, 16, 3), np.nan), "must be in 0…1, got nan"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_items_that_are_not_images_are_refused_in_one_sentence(data: Any, expected: str) -> None:
    with pytest.raises(UserError, match=expected) as caught:
        images().encode(data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (np.ones((5, 9)), "takes vectors of 4 features, got 9"),
        ([1.0, 2.0], "takes vectors of 4 features, got 2"),
        (np.ones((2, 4, 1)), r"got \(2, 4, 1\)$"),
        (np.array(1.0), r"takes feature vectors, numbers of shape \(features,\) or \(n, features\)"),
        ([[1.0], [1.0, 2.0]], "got list$"),
        ("x.png", "got text$"),
        (Path("x.png"), "got PosixPath$"),
        (Image.new("L", (4, 4)), "got Image$"),
        (["x.png"], "got text$"),
        ([[1.0, 2.0, 3.0, 4.0], [1.0, 2.0, np.nan, 4.0]], "1 of 2 vectors contain NaN or infinity, first in row 1"),
        (torch.tensor([1.0, 2.0, 3.0, torch.inf]), "1 of 1 vectors contain NaN or infinity, first in row 0"),
    ],
)
def test_items_that_are_not_vectors_are_refused_in_one_sentence(data: Any, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        vectors().encode(data)


def test_a_path_may_start_with_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    Image.fromarray(LARGE).save(tmp_path / "x.png")
    assert images().encode("~/x.png").shape == (8,) and images().encode(["~/x.png", LARGE]).shape == (2, 8)


def test_unreadable_images_are_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"broken")
    with pytest.raises(UserError, match=r"broken\.png: not an image .* this file or leave it out$"):
        images().encode(tmp_path / "broken.png")
    with pytest.raises(UserError, match=r"gone\.png: no such file; check this file or leave it out$"):
        images().encode([LARGE, tmp_path / "gone.png"])
    whole = io.BytesIO()
    Image.new("RGB", (90, 90), "red").save(whole, "bmp")
    cut = Image.open(io.BytesIO(whole.getvalue()[:400]))
    with pytest.raises(UserError, match=r"image 1 cannot be decoded \(.*truncated"):
        images().encode([LARGE, cut])


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"batch_size": -2}, {"workers": -1}])
def test_impossible_batches_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UserError, match="batch_size must be >= 1 and workers >= 0, got"):
        images().encode(LARGE, **wrong)  # type: ignore[call-overload]
