"""The decay of γ in facility location, its sub-batches, and the read-out of spectral."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from nearkin.api import make_settings
from nearkin.evaluation import evaluate
from nearkin.losses import FacilityLocationLoss
from nearkin.methods import Batch, make_method
from nearkin.sampling import ClassRatioSampler, RandomBatchSampler
from nearkin.space import Space
from nearkin.training import Run
from nearkin.training.loop import make_trainer

LABELS = torch.arange(32) // 4


def batch() -> tuple[Tensor, Batch]:
    embeddings = torch.randn(32, 6, generator=torch.Generator().manual_seed(0), requires_grad=True)
    return embeddings, Batch(torch.zeros(32), LABELS, torch.arange(32), step=0)


def test_gamma_is_a_function_of_the_step() -> None:
    method = make_method("facility-location", gamma=8.0, gamma_decay=0.5, gamma_decay_steps=10)
    embeddings, one = batch()
    for step, gamma in ((0, 8.0), (9, 8.0), (35, 1.0), (10, 4.0)):
        method.start_epoch(7)  # changes nothing
        method.step(lambda inputs, learner=None: embeddings, replace(one, step=step))  # noqa: ARG005
        assert method.loss.gamma == gamma


def test_gamma_can_decay_once_per_epoch() -> None:
    method = make_method("facility-location", gamma=8.0, gamma_decay=0.5, gamma_decay_steps=0)
    assert isinstance(method.loss, FacilityLocationLoss)
    embeddings, one = batch()
    for epoch, gamma in ((0, 8.0), (3, 1.0), (1, 4.0)):
        method.start_epoch(epoch)
        method.step(lambda inputs, learner=None: embeddings, replace(one, step=99))  # noqa: ARG005
        assert method.loss.gamma == gamma


@pytest.mark.parametrize("wraps", ["", "divide-and-conquer"])
def test_gamma_decays_during_a_run(tmp_path: Path, wraps: str) -> None:
    np.savez(tmp_path / "x.npz", vectors=np.random.default_rng(0).normal(size=(96, 5)), labels=np.arange(96) // 8)
    common = {"epochs": 3, "batch_size": 16, "dim": 8, "backbone": "linear", "evaluate_every": 0, "device": "cpu"}
    own = {"gamma": 8.0, "gamma_decay": 0.5, "gamma_decay_steps": 3}
    if wraps:
        written = ",".join(f"{name}={value}" for name, value in own.items())
        own = {"wraps": f"facility-location:{written}", "learners": 2, "finetune": 0.0}
    trainer = make_trainer(
        make_settings(tmp_path / "x.npz", wraps or "facility-location", common | own), Run(tmp_path / "run")
    )
    trainer.train()
    losses = [module for module in trainer.method.loss.modules() if isinstance(module, FacilityLocationLoss)]
    assert min(loss.gamma for loss in losses) == 2.0  # of the learner that took the last step, the ninth


def test_the_loss_is_averaged_over_random_subsets() -> None:
    method = make_method("facility-location", sub_batches=3, sub_batch_share=0.25)
    embeddings, one = batch()
    torch.manual_seed(5)
    loss = method.step(lambda inputs, learner=None: embeddings, one)  # noqa: ARG005
    torch.manual_seed(5)
    subsets = [torch.randperm(32)[:8] for _ in range(3)]
    assert len({tuple(rows.tolist()) for rows in subsets}) == 3
    expected = torch.stack([method.loss(embeddings[rows], LABELS[rows]) for rows in subsets]).mean()
    assert loss.item() == pytest.approx(expected.item())
    found, wanted = (torch.autograd.grad(value, embeddings)[0] for value in (loss, expected))
    torch.testing.assert_close(found, wanted)


def test_batches_have_the_chosen_ratio_of_classes() -> None:
    labels = np.repeat(np.arange(40), 12)
    for ratio in (0.25, 0.5, 0.75):
        sampler = make_method("facility-location", class_ratio=ratio).sampler(labels, 32, seed=0)
        assert isinstance(sampler, ClassRatioSampler)
        assert {len(set(labels[each])) for each in sampler} == {round(32 * ratio)}
    assert isinstance(make_method("spectral").sampler(labels, 32, 0), RandomBatchSampler)
    assert isinstance(make_method("spectral", class_ratio=0.4).sampler(labels, 32, 0), ClassRatioSampler)


def test_spectral_is_also_measured_with_singular_vectors() -> None:
    """A stretched space hides its classes from distances, but not from singular vectors."""
    generator = torch.Generator().manual_seed(0)
    points = torch.nn.functional.one_hot(LABELS, 8) + 0.3 * torch.randn(32, 8, generator=generator)
    stretched = Space.of(points @ torch.diag(10.0 ** torch.linspace(0, 3, 8)), LABELS)
    scores = make_method("spectral").read_out(stretched, None)
    plain = evaluate(stretched).scores
    assert scores["with_sc_map@r"] > plain["map@r"] + 0.2
    assert scores["with_sc_nmi_geometric"] > plain["nmi_geometric"]
    assert "with_sc_nmi_geometric" not in make_method("spectral").read_out(stretched, None, clustering=None)
