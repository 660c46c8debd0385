"""torch.compile for the backbone: whether it pays."""

from __future__ import annotations

import logging

import torch

from nearkin.errors import unknown_name
from nearkin.models.model import ModelSpec
from nearkin.training.settings import TrainingSettings

log = logging.getLogger("nearkin")

COMPILE = ("auto", "on", "off")
# Compiling takes one to two minutes. On an H200 an image of 224 pixels then takes 0.2 ms less.
WORTHWHILE_IMAGES = 600_000


def check_compile(settings: TrainingSettings) -> None:
    if settings.compile not in COMPILE:
        raise unknown_name("compile", settings.compile, COMPILE)


def should_compile(settings: TrainingSettings, spec: ModelSpec, steps: int, device: torch.device) -> bool:
    """Whether to compile the backbone for this many steps; says so if that was left open.

    >>> vectors = ModelSpec("mlp", dim=8, features=4)
    >>> should_compile(TrainingSettings(), vectors, steps=10**9, device=torch.device("cuda"))
    False
    """
    if settings.compile != "auto":
        return settings.compile == "on"
    if device.type != "cuda" or spec.preprocess is None:
        return False
    images = steps * settings.batch_size * (spec.preprocess.size / 224) ** 2
    if images < WORTHWHILE_IMAGES:
        return False
    log.info("compiling the backbone, which takes a minute or two; compile=off skips it")
    return True
