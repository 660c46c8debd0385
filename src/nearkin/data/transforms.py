"""Transforms: from an image to the square of eight-bit pixels that a network takes, with optional augmentation."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from nearkin.data.images import limit_aspect_ratio
from nearkin.errors import UserError, unknown_name

PIXELS_VERSION = 2  # part of the keys of caches; raise it if the same file gives other pixels than before
AUGMENTATIONS = ("none", "crop-flip", "rescaled-crop-flip", "resized-crop-flip")
RESCALED = 1.3  # the largest short side of rescaled-crop-flip, in units of the crop
# By torchvision's names. On images, its two kinds of "nearest" are the same.
INTERPOLATIONS = {each.name.lower(): each for each in Image.Resampling} | {"nearest-exact": Image.Resampling.NEAREST}
Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Preprocess:
    """The input that a network expects. The model itself applies mean and standard deviation.

    Attributes:
        size: side of the square crop.
        resize: length of the short side before cropping.
        channels: 1 for grey, 3 for RGB.
        mean, std: mean and standard deviation of pixels in 0…1, one number per channel.
        interpolation: how to resize, by torchvision's name.
    """

    size: int
    resize: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bicubic"


def make_transform(preprocess: Preprocess, augment: str = "none") -> Transform:
    """Returns a function from an RGB image to a (channels, size, size) uint8 tensor.

    ``none`` crops the centre. ``crop-flip`` crops at a random position and flips half of the time, as most
    metric-learning papers do. ``rescaled-crop-flip`` first resizes the short side to 1 to 1.3 times the crop, as in the
    Magnet paper (section 4). ``resized-crop-flip`` varies scale, by much more, and aspect ratio. Random numbers come
    from torch. The tensors are those of torchvision's transforms, up to two grey levels where an image is resized.

    >>> make_transform(Preprocess(4, 4, 1, (0.5,), (0.5,)))(Image.new("RGB", (8, 6))).shape
    torch.Size([1, 4, 4])
    """
    if augment not in AUGMENTATIONS:
        raise unknown_name("augmentation", augment, AUGMENTATIONS)
    if preprocess.interpolation not in INTERPOLATIONS:
        raise unknown_name("interpolation", preprocess.interpolation, INTERPOLATIONS)
    if preprocess.size > preprocess.resize:
        raise UserError(f"a crop of {preprocess.size} pixels does not fit in {preprocess.resize}; use a larger resize")
    return Transform(preprocess, augment)


@dataclass(frozen=True)
class Transform:
    """See `make_transform`; not a function, so that it can be sent to a worker process."""

    preprocess: Preprocess
    augment: str

    @property
    def short(self) -> int | None:
        """The largest short side that images are resized to; None if there is none."""
        if self.augment == "rescaled-crop-flip":
            return int(RESCALED * self.preprocess.size)
        return None if self.augment == "resized-crop-flip" else self.preprocess.resize

    def __call__(self, image: Image.Image) -> Tensor:
        size, how = self.preprocess.size, self.preprocess.interpolation
        image = limit_aspect_ratio(image)
        if self.augment == "resized-crop-flip":
            pixels = _resized(image.crop(_random_box(image)), (size, size), how)
        else:
            short = self.short or 0
            if self.augment == "rescaled-crop-flip":
                short = int(torch.randint(size, short + 1, ()))
            width, height = (int(short * side / min(image.size)) for side in image.size)
            top, left = self._corner(height - size), self._corner(width - size)
            pixels = _resized(image, (width, height), how)[top : top + size, left : left + size]
        if self.augment != "none" and torch.rand(1).item() < 0.5:
            pixels = pixels[:, ::-1]
        if self.preprocess.channels == 1:
            pixels = np.asarray(Image.fromarray(np.ascontiguousarray(pixels)).convert("L"))[..., None]
        return torch.from_numpy(np.array(pixels.transpose(2, 0, 1), order="C"))

    def _corner(self, spare: int) -> int:
        """Where the crop begins along a side that is longer by ``spare`` pixels."""
        if self.augment == "none":
            return round(spare / 2)
        return int(torch.randint(spare + 1, (1,))) if spare else 0


def _resized(image: Image.Image, size: tuple[int, int], interpolation: str) -> Pixels:
    """Returns (height, width, 3) pixels."""
    if image.size == size:
        return np.asarray(image)
    if not (interpolation in ("bilinear", "bicubic") and _has_avx2()):
        return np.asarray(image.resize(size, INTERPOLATIONS[interpolation]))
    # Four times as fast as Pillow. The pixels differ by at most two, except a few at sharp edges where the aspect ratio
    # changes: Pillow may resize the height first, torch never does.
    channels_first = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]
    resized = interpolate(channels_first, (size[1], size[0]), mode=interpolation, antialias=True)
    pixels: Pixels = resized[0].permute(1, 2, 0).numpy()
    return pixels


@cache
def _has_avx2() -> bool:
    """Whether torch resizes bytes with vector instructions; without them, it takes longer than Pillow."""
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def _random_box(image: Image.Image) -> tuple[int, int, int, int]:
    from nearkin import _torchvision  # noqa: F401, I001 (first)
    from torchvision.transforms import RandomResizedCrop

    top, left, height, width = RandomResizedCrop.get_params(image, scale=[0.2, 1.0], ratio=[3 / 4, 4 / 3])
    return left, top, left + width, top + height


@contextmanager
def seeded(seed: int, everything: bool = False) -> Iterator[None]:
    """Seeds random numbers in this block with ``seed``; restores torch's random state afterwards.

    Args:
        everything: also seed Python and NumPy, for code of other libraries. Takes longer than a small transform.
    """
    state = torch.get_rng_state()
    others = (random.getstate(), np.random.get_state()) if everything else None
    try:
        # Not torch.manual_seed: it also seeds every accelerator, which takes longer than decoding the image.
        torch.default_generator.manual_seed(seed)
        if others:
            random.seed(seed)
            np.random.seed(seed % 2**32)
        yield
    finally:
        torch.set_rng_state(state)
        if others:
            random.setstate(others[0])
            np.random.set_state(others[1])
