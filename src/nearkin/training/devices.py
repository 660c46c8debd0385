"""Devices, precision and processes with Lightning Fabric, and the gather that losses need."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from nearkin.data import Dataset
from nearkin.errors import UserError, unknown_name
from nearkin.models import EmbeddingModel, embed
from nearkin.models.embed import space_of
from nearkin.models.model import Head
from nearkin.space import Space
from nearkin.training.settings import TrainingSettings

if TYPE_CHECKING:
    from lightning_fabric import Fabric

DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("32-true", "bf16-mixed")


def make_fabric(settings: TrainingSettings, slices: int = 1) -> Fabric:
    """One device, or one per process under torchrun; with several slices, a step does not use all parameters."""
    on_cuda, precision = device_and_precision(settings)
    for name in ("lightning_fabric", "lightning.fabric"):  # its hints are about choices made here
        logging.getLogger(name).setLevel(logging.WARNING)
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    fabric: Fabric = fabric_module().Fabric(
        accelerator="cuda" if on_cuda else "cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", processes)),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        strategy=("ddp_find_unused_parameters_true" if slices > 1 else "ddp") if processes > 1 else "auto",
        precision=precision,
    )
    fabric.launch()
    if processes > 1:
        atexit.register(_leave_group)
    return fabric


def _leave_group() -> None:
    """Ends the communication threads, which may abort a finished process if they still run."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def fabric_module(name: str = "") -> Any:
    """Lightning Fabric or one of its modules; the ``lightning`` package has it as ``lightning.fabric``."""
    dotted = f".{name}" if name else ""
    try:
        with _hidden("torchmetrics"):  # of which Fabric only wants the version; it takes longer than all of Fabric
            return import_module(f"lightning_fabric{dotted}")
    except ModuleNotFoundError:
        from nearkin import _torchvision  # noqa: F401 (lightning imports torchmetrics, which imports torchvision)

        return import_module(f"lightning.fabric{dotted}")


@contextmanager
def _hidden(module: str) -> Iterator[None]:
    """In this block, a module that is not yet imported seems not to be installed."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]


def device_and_precision(settings: TrainingSettings) -> tuple[bool, str]:
    """Whether to train on CUDA, and the precision; rejects what this machine cannot do."""
    if settings.device not in DEVICES:
        raise unknown_name("device", settings.device, DEVICES)
    cuda = torch.cuda.is_available()
    if settings.device == "cuda" and not cuda:
        raise UserError('no CUDA device was found; use device="cpu"')
    on_cuda = cuda and settings.device != "cpu"
    precision = settings.precision or ("bf16-mixed" if on_cuda else "32-true")
    if precision not in PRECISIONS:
        raise unknown_name("precision", precision, PRECISIONS)
    if precision == "bf16-mixed" and not on_cuda:
        raise UserError('precision="bf16-mixed" needs a CUDA device; on the CPU use precision="32-true"')
    return on_cuda, precision


def seed_device(device: torch.device, seed: int) -> None:
    """Seeds the host and one device (torch.manual_seed seeds every device and takes a thousand times longer)."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def gathered(fabric: Fabric, share: Tensor) -> Tensor:
    """The rows of all processes as one global batch, in rank order.

    The gradient flows back to every process. Each process computes the same loss of the whole batch, the backward pass
    of the gather sums the gradients, and DDP takes their mean: exactly the gradient of a single process.
    """
    if fabric.world_size == 1:
        return share
    everything = fabric.all_gather(share, sync_grads=True)
    assert isinstance(everything, Tensor)
    return everything.flatten(0, 1)


def embed_dataset(
    fabric: Fabric,
    model: EmbeddingModel | Head,
    dataset: Dataset,
    batch_size: int,
    workers: int | None,
    use_cache: bool = False,
    full_precision: bool = True,
    head: bool = True,
) -> Space:
    """Embeds a dataset with all processes; each of them gets the whole space, on its device.

    Args:
        use_cache: whether to use the cache of backbone features.
        full_precision: False: in the precision of training.
        head: False: the space of the backbone's features.
    """
    share = -(-len(dataset) // fabric.world_size)
    start = fabric.global_rank * share
    mine = np.arange(start, start + share) % len(dataset)  # wraps, so that all shares have the same length
    own = dataset.take(mine) if fabric.world_size > 1 else dataset
    mixed = not full_precision and fabric._precision.precision == "bf16-mixed"
    space = embed.embed_dataset(
        model,
        own,
        batch_size=batch_size,
        workers=workers,
        use_cache=use_cache,
        autocast=torch.bfloat16 if mixed else None,
        head=head,
    )
    return space_of(gathered(fabric, space.embeddings.to(fabric.device))[: len(dataset)], dataset)
