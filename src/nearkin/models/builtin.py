"""The backbones that nearkin brings itself: a compact convnet for small images, and two for feature vectors."""

from __future__ import annotations

from itertools import pairwise

from torch import nn


def small(channels: int, widths: tuple[int, ...] = (32, 64, 128, 256)) -> tuple[nn.Module, int]:
    """Four convolutions with batch norm, each seeing half the picture's side of the one before, then the average.

    Made for pictures of 16 to 64 pixels; about 390 thousand parameters. The first convolution already halves the
    side: at full size it would take more time than all others together.
    """
    layers: list[nn.Module] = [nn.Conv2d(channels, widths[0], 5, stride=2, padding=2, bias=False)]
    layers += [nn.BatchNorm2d(widths[0]), nn.ReLU(inplace=True)]
    for entering, leaving in pairwise(widths):
        layers += [nn.MaxPool2d(2, ceil_mode=True), nn.Conv2d(entering, leaving, 3, padding=1, bias=False)]
        layers += [nn.BatchNorm2d(leaving), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), widths[-1]


def mlp(features: int, width: int = 512) -> tuple[nn.Module, int]:
    """Two hidden layers for feature vectors."""
    hidden = [nn.Linear(features, width), nn.LayerNorm(width), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU()), width


def linear(features: int) -> tuple[nn.Module, int]:
    """Nothing before the head: a plain linear map of feature vectors."""
    return nn.Identity(), features


FOR_IMAGES = {"small": small}
FOR_VECTORS = {"mlp": mlp, "linear": linear}
