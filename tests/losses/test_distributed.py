"""PML's distributed wrapper around nearkin losses: two processes get the gradient of the whole batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
from reference.batches import gradient, random_batch
from torch import distributed

from nearkin.losses import make_loss
from nearkin.losses.pml import for_pml

NAMES = ["contrastive", "triplet", "rank", "spectral"]


def share_of_the_gradient(rank: int, folder: str) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    x, y = random_batch(items=16)
    own = slice(8 * rank, 8 * rank + 8)
    found = {}
    for name in NAMES:
        for efficient in (False, True)[: 1 if name == "spectral" else 2]:
            wrapped = DistributedLossWrapper(for_pml(make_loss(name)), efficient=efficient)
            found[name, efficient] = gradient(wrapped, x[own], y[own])
    torch.save(found, f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


@pytest.mark.skipif(not distributed.is_available(), reason="needs torch.distributed")
def test_two_processes_have_the_gradient_of_the_whole_batch(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(share_of_the_gradient, (str(tmp_path),), nprocs=2)
    shares = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    x, y = random_batch(items=16)
    for name in NAMES:
        both = torch.cat([share[name, False] for share in shares])
        assert torch.allclose(both / 2, gradient(make_loss(name), x, y))  # they multiply by the number of processes
    for name in NAMES[:3]:
        assert all(share[name, True].any() and share[name, True].isfinite().all() for share in shares)
