"""nearkin's own backbones: a compact convnet for small images, and two for feature vectors."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from nearkin.data.transforms import Preprocess
from nearkin.models.backbones.registry import register_backbone

HALF = (0.5, 0.5, 0.5)


@register_backbone("small", Preprocess(64, 64, 3, HALF, HALF), grey=True)
def small(channels: int, widths: tuple[int, ...] = (32, 64, 128, 256)) -> nn.Module:
    """Four convolutions with batch norm, each at half the resolution of the one before, then average pooling.

    For images of 16 to 64 pixels; about 390,000 parameters. The first convolution already has stride 2: at full
    resolution it would take more time than all others together.
    """
    layers: list[nn.Module] = [nn.Conv2d(channels, widths[0], 5, stride=2, padding=2, bias=False)]
    layers += [nn.BatchNorm2d(widths[0]), nn.ReLU(inplace=True)]
    for inputs, outputs in pairwise(widths):
        layers += [nn.MaxPool2d(2, ceil_mode=True), nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)]
        layers += [nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


@register_backbone("mlp", reads="vectors")
def mlp(features: int, width: int = 512) -> nn.Module:
    """An MLP with two hidden layers, for feature vectors."""
    hidden = [nn.Linear(features, width), nn.LayerNorm(width), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU())


@register_backbone("linear", reads="vectors")
def linear(features: int) -> nn.Module:  # noqa: ARG001
    """The identity: with the head, the model is a linear map of feature vectors."""
    return nn.Identity()
