"""Images of any shape become squares, and no image takes more memory than its pixels justify."""

from __future__ import annotations

import pickle
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2

from nearkin.data import transforms
from nearkin.data.images import Unreadable, read_image
from nearkin.data.transforms import AUGMENTATIONS, Preprocess, make_transform, seeded
from nearkin.errors import UserError

NETWORK = Preprocess(224, 256, 3, (0.5,) * 3, (0.5,) * 3)


@pytest.mark.parametrize("augment", AUGMENTATIONS)
@pytest.mark.parametrize("size", [(1, 20_000), (20_000, 1)])
def test_a_long_strip_is_not_enlarged_as_a_whole(size: tuple[int, int], augment: str) -> None:
    """With its short side at 256 it would have 1.3 billion pixels, four gigabytes."""
    transform = make_transform(NETWORK, augment)
    transform(Image.new("RGB", (300, 300)))  # excludes what is loaded on first use
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert transform(Image.new("RGB", size, "red")).shape == (3, 224, 224)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kilobytes


def test_cropping_the_ends_does_not_change_the_centre() -> None:
    strip = Image.effect_noise((4000, 40), 90).convert("RGB")
    within = strip.crop((2000 - 320, 0, 2000 + 320, 40))
    transform = make_transform(NETWORK)
    assert torch.equal(transform(strip), transform(within))


def torchvisions(preprocess: Preprocess, augment: str) -> Callable[[Image.Image], Tensor]:
    size, how = (preprocess.size, preprocess.size), InterpolationMode(preprocess.interpolation)
    resize, flip = v2.Resize(preprocess.resize, interpolation=how), v2.RandomHorizontalFlip()
    steps = {
        "none": [resize, v2.CenterCrop(size)],
        "crop-flip": [resize, v2.RandomCrop(size), flip],
        "rescaled-crop-flip": [v2.RandomResize(size[0], int(1.3 * size[0]) + 1, how), v2.RandomCrop(size), flip],
        "resized-crop-flip": [v2.RandomResizedCrop(size, scale=(0.2, 1.0), interpolation=how), flip],
    }[augment]
    colours = [v2.Grayscale(1)] if preprocess.channels == 1 else []
    chain: Callable[[Image.Image], Tensor] = v2.Compose([*steps, *colours, v2.PILToTensor()])
    return chain


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """Smooth areas, edges and a little noise."""
    rng = np.random.default_rng(seed)
    smooth = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize((width, height), 3)
    pixels = np.asarray(smooth) + rng.normal(0, 3, (height, width, 3))
    pixels[height // 3 : height // 2, width // 4 : width // 2] = (250, 10, 60)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


@pytest.mark.parametrize("augment", AUGMENTATIONS)
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear", "nearest", "lanczos"])
@pytest.mark.parametrize("with_avx2", [True, False])
def test_tensors_are_those_of_torchvision(
    augment: str, interpolation: str, with_avx2: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transforms, "_has_avx2", lambda: with_avx2)
    for channels in (1, 3):
        preprocess = replace(NETWORK, size=48, resize=56, channels=channels, interpolation=interpolation)
        ours, theirs = make_transform(preprocess, augment), torchvisions(preprocess, augment)
        for seed, size in enumerate([(90, 61), (61, 90), (56, 70), (48, 48), (300, 31)]):
            found = []
            for transform in (ours, theirs):
                with seeded(seed):
                    found.append(transform(photo(*size)))
            assert found[0].dtype == found[1].dtype == torch.uint8
            differences = (found[0].int() - found[1].int()).abs()
            if with_avx2 and interpolation in ("bilinear", "bicubic"):
                assert (differences <= 2).float().mean() >= (0.99 if augment == "resized-crop-flip" else 1)
            else:
                assert not differences.any()


def test_a_transform_can_be_sent_to_a_process() -> None:
    transform, image = make_transform(NETWORK), photo(300, 280)
    assert torch.equal(pickle.loads(pickle.dumps(transform))(image), transform(image))


@pytest.mark.parametrize("size", [(1600, 1200), (1200, 1600), (1598, 1198), (1601, 1200)])
@pytest.mark.parametrize("augment", AUGMENTATIONS)
def test_a_large_jpeg_gives_the_same_pixels_though_it_is_not_decoded_in_full(
    size: tuple[int, int], augment: str, tmp_path: Path
) -> None:
    photo(*size).save(tmp_path / "x.jpg", quality=92)
    transform = make_transform(replace(NETWORK, size=88, resize=100), augment)
    small, whole = read_image(tmp_path / "x.jpg", transform.short), read_image(tmp_path / "x.jpg")
    assert not isinstance(small, Unreadable) and not isinstance(whole, Unreadable)
    least = 2 if size[0] % 4 or augment == "rescaled-crop-flip" else 4  # the latter needs a short side of 114
    scale = 1 if augment == "resized-crop-flip" or size[0] % 2 else least
    assert (small.width * scale, small.height * scale) == whole.size == size
    found = []
    for image in (small, whole):
        with seeded(5):
            found.append(transform(image))
    differences = (found[0].int() - found[1].int()).abs()
    assert differences.max() <= 8  # at the edges
    assert (differences <= 2).float().mean() > 0.99


def test_a_crop_larger_than_the_image_is_refused() -> None:
    with pytest.raises(UserError, match="a crop of 224 pixels does not fit in 200"):
        make_transform(replace(NETWORK, resize=200))
