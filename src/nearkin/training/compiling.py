"""What makes steps cheaper to launch: torch.compile for the backbone, if it pays, and CUDA graphs for losses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress

import torch
from torch import nn

from nearkin.errors import UserError, unknown_name
from nearkin.losses import graphed
from nearkin.methods.base import StepLoss
from nearkin.models.model import EmbeddingModel, ModelSpec
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


def compile_backbone(model: EmbeddingModel, graph: bool) -> Callable[[], None]:
    """Compiles the backbone in place; the names of its weights stay as they are.

    Args:
        graph: capture it as a CUDA graph, because the host takes longer to launch the kernels than the GPU to run
            them. For models that are called once per step.

    Returns:
        A function that undoes it.
    """

    def new_iteration(*_: object) -> None:
        torch.compiler.cudagraph_mark_step_begin()  # the graph may now reuse the memory of its last outputs

    before = model.backbone._compiled_call_impl
    model.backbone.compile(dynamic=False, mode="reduce-overhead" if graph else None)
    hook = model.register_forward_pre_hook(new_iteration) if graph else None

    def undo() -> None:
        model.backbone._compiled_call_impl = before
        if hook:
            hook.remove()

    return undo


def record_losses(losses: Iterable[StepLoss], batch_size: int, device: torch.device) -> Callable[[], None]:
    """Records nearkin's own losses as CUDA graphs in place, if they can be; returns a function that undoes it.

    Other losses are left as they are, because they may change with every batch in ways that a recording does not see.
    So are compiled ones.
    """
    recorded: list[nn.Module] = []
    for loss, dim, ids in losses:
        if not type(loss).__module__.startswith("nearkin.") or loss._compiled_call_impl is not None:
            continue
        more = {name: torch.zeros(batch_size, dtype=torch.long) for name in ids}
        with suppress(UserError):  # it reads data on the host
            graph = graphed(loss, batch_size, dim, device, **more)
            loss._compiled_call_impl = graph.forward
            recorded.append(loss)

    def undo() -> None:
        for loss in recorded:
            loss._compiled_call_impl = None

    return undo
