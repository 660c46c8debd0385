"""Transforms: from an image to the square of eight-bit pixels that a network takes, with optional augmentation."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nearkin.data.images import limit_aspect_ratio
from nearkin.errors import unknown_name

AUGMENTATIONS = ("none", "crop-flip", "resized-crop-flip")
Transform = Callable[[Image.Image], Tensor]


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
    """Returns a function from an image to a (channels, size, size) uint8 tensor.

    ``none`` crops the centre. ``crop-flip`` crops at a random position and flips half of the time, as most
    metric-learning papers do. ``resized-crop-flip`` also varies scale and aspect ratio. Random numbers come from torch.

    >>> make_transform(Preprocess(4, 4, 1, (0.5,), (0.5,)))(Image.new("RGB", (8, 6))).shape
    torch.Size([1, 4, 4])
    """
    from nearkin import _torchvision  # noqa: F401, I001 (first)
    from torchvision.transforms import InterpolationMode, v2

    if augment not in AUGMENTATIONS:
        raise unknown_name("augmentation", augment, AUGMENTATIONS)
    interpolation = InterpolationMode(preprocess.interpolation)
    size = (preprocess.size, preprocess.size)
    resize = v2.Resize(preprocess.resize, interpolation=interpolation)
    steps = {
        "none": [resize, v2.CenterCrop(size)],
        "crop-flip": [resize, v2.RandomCrop(size), v2.RandomHorizontalFlip()],
        "resized-crop-flip": [
            v2.RandomResizedCrop(size, scale=(0.2, 1.0), interpolation=interpolation),
            v2.RandomHorizontalFlip(),
        ],
    }[augment]
    colours = v2.Grayscale(preprocess.channels) if preprocess.channels == 1 else v2.Identity()
    chain: Transform = v2.Compose([limit_aspect_ratio, *steps, colours, v2.PILToTensor()])
    return chain


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
