"""Images of any shape become squares, and no image takes more memory than its pixels justify."""

from __future__ import annotations

import resource

import pytest
import torch
from PIL import Image

from nearkin.data.transforms import AUGMENTATIONS, Preprocess, make_transform

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
