"""Optimizers with one learning rate per part of the model, and schedules that depend only on the step."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from nearkin.errors import UserError, unknown_name
from nearkin.methods import Phase
from nearkin.training.settings import TrainingSettings

OPTIMIZERS = ("adam", "adamw", "sgd", "rmsprop")
SCHEDULES = ("constant", "cosine", "linear", "step")


def make_optimizer(parts: dict[str, tuple[nn.Module, float]], settings: TrainingSettings) -> Optimizer:
    """An optimizer over named parts, each with its own learning rate; skips parts without trainable parameters."""
    groups: list[dict[str, Any]] = []
    for name, (module, rate) in parts.items():
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if parameters:
            groups.append({"params": parameters, "lr": rate, "rate": rate, "name": name})
    decay = settings.weight_decay
    fused = can_fuse([each for group in groups for each in group["params"]])
    optimizer: Optimizer
    match settings.optimizer:
        case "adam":
            optimizer = torch.optim.Adam(groups, weight_decay=decay, fused=fused)
        case "adamw":
            optimizer = torch.optim.AdamW(groups, weight_decay=decay, fused=fused)
        case "sgd":
            optimizer = torch.optim.SGD(groups, momentum=settings.momentum, weight_decay=decay, fused=fused)
        case "rmsprop":
            return torch.optim.RMSprop(groups, momentum=settings.momentum, weight_decay=decay)
        case _:
            raise unknown_name("optimizer", settings.optimizer, OPTIMIZERS)

    def keep_fused(_: Optimizer, state: dict[str, Any]) -> None:
        """A checkpoint may come from another device."""
        for group in state["param_groups"]:
            group["fused"] = fused

    optimizer.register_load_state_dict_pre_hook(keep_fused)
    return optimizer


def can_fuse(parameters: list[nn.Parameter]) -> bool:
    """On CUDA, one kernel updates all weights, or none of them after a failed step (see `StepMonitor`)."""
    return all(parameter.is_cuda for parameter in parameters)


def set_rates(optimizer: Optimizer, factor: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = group["rate"] * factor


def rate_factor(
    step: int, steps_per_epoch: int, settings: TrainingSettings, phases: Sequence[Phase] = (Phase(0),)
) -> float:
    """The factor of the learning rates at a step, counted from 0. The schedule starts again with every phase.

    >>> two_epochs = TrainingSettings(epochs=2, warmup_steps=0)
    >>> rate_factor(0, 10, two_epochs), rate_factor(20, 10, two_epochs)
    (1.0, 0.0)
    >>> rate_factor(10, 10, two_epochs, [Phase(0), Phase(1, rate_factor=0.3)])
    0.3
    """
    starts = [phase.first_epoch * steps_per_epoch for phase in phases]
    ends = [*starts[1:], settings.epochs * steps_per_epoch]
    now = bisect_right(starts, step) - 1
    warmup = settings.warmup_steps if starts[now] == 0 else 0  # a later phase starts from trained weights
    return phases[now].rate_factor * _scheduled(
        step - starts[now], ends[now] - starts[now], warmup, steps_per_epoch, settings
    )


def _scheduled(step: int, steps: int, warmup: int, steps_per_epoch: int, settings: TrainingSettings) -> float:
    """The factor at a step of a phase, counted from its start."""
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    match settings.schedule:
        case "constant":
            return 1.0
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * done))
        case "linear":
            return 1 - done
        case "step":
            return settings.decay_factor ** (step // steps_per_epoch // settings.decay_every)
    raise unknown_name("schedule", settings.schedule, SCHEDULES)


def check(settings: TrainingSettings) -> None:
    """Raises for settings that cannot work, before anything is loaded."""
    if settings.optimizer not in OPTIMIZERS:
        raise unknown_name("optimizer", settings.optimizer, OPTIMIZERS)
    if settings.schedule not in SCHEDULES:
        raise unknown_name("schedule", settings.schedule, SCHEDULES)
    usual = TrainingSettings()
    for name, value in vars(settings).items():
        if isinstance(value, int | float) and value < min(0, getattr(usual, name)):
            kind = "an integer" if isinstance(value, int) else "a number"
            raise UserError(f"{name} must be {kind} >= 0, got {value}")
    for name in ("decay_every", "decay_factor"):
        if getattr(settings, name) == 0:
            raise UserError(f"{name} must be a number > 0, got 0")
