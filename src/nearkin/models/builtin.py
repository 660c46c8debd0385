"""The backbones that nearkin brings itself: a compact convnet for small images, and two for feature vectors."""

from __future__ import annotations

from itertools import pairwise

from torch import nn


def small(channels: int, widths: tuple[int, ...] = (32, 64, 128, 256)) -> tuple[nn.Module, int]:
    """Four 3×3 convolutions with batch norm, halving the picture between them, averaged at the end.

    Made for pictures of 28 to 64 pixels; about 390 thousand parameters.
    """
    layers: list[nn.Module] = []
    for entering, leaving in pairwise((channels, *widths)):
        if layers:
            layers.append(nn.MaxPool2d(2, ceil_mode=True))
        layers += [nn.Conv2d(entering, leaving, 3, padding=1, bias=False), nn.BatchNorm2d(leaving), nn.ReLU()]
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
