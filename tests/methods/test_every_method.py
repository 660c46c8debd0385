"""All methods learn, resume exactly, and refuse impossible settings before training."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearkin.api import evaluate, make_settings
from nearkin.errors import Interrupted, UserError
from nearkin.methods import Batch, known_methods, make_method
from nearkin.training import Run, Settings, loop
from nearkin.training.loop import Trainer, make_trainer

NAMES = [method.name for method in known_methods() if method.paper]
# What a method learns is seen best from a random head, on all training classes.
PLAIN = {"validation": 0.0, "head_init": "random", "warmup_steps": 0, "split": "first-half"}
QUICK: dict[str, Any] = {"epochs": 3, "batch_size": 32, "dim": 8, "device": "cpu"} | PLAIN
SPECIAL: dict[str, dict[str, Any]] = {
    "divide-and-conquer": {"learners": 2, "recluster_epochs": 1, "finetune": 0.34},
    "facility-location": {"sub_batches": 2},
    "magnet": {"refresh_steps": 4, "choose_clusters": True, "candidates": "index", "active_share": 0.5},
    "margin": {"beta_per_class": True},
}


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Classes as two clouds each, in some of the coordinates; the others are noise."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(40), 8)
    centres = 2.0 * rng.normal(size=(40, 2, 6))
    points = centres[labels, np.arange(len(labels)) % 2] + rng.normal(size=(len(labels), 6))
    noise = 3.0 * rng.normal(size=(len(labels), 20))
    file = tmp_path_factory.mktemp("vectors") / "x.npz"
    np.savez(file, vectors=np.hstack([points, noise]), labels=labels)
    return file


def settings(source: Path, method: str, **changes: Any) -> Settings:
    return make_settings(source, method, QUICK | {"backbone": "linear"} | SPECIAL.get(method, {}) | changes)


def weights(run: Run) -> bytes:
    return (run.model_folder / "model.safetensors").read_bytes()


def records(run: Run) -> list[dict[str, Any]]:
    timed = ("items_per_second", "refresh_share")
    return [{name: value for name, value in record.items() if name not in timed} for record in run.metrics]


def test_all_expected_methods_are_registered() -> None:
    papers = ["facility-location", "spectral", "divide-and-conquer", "magnet", "rank"]
    baselines = ["triplet", "lifted", "npairs", "contrastive", "margin", "nca", "proxy-nca", "softmax", "pml"]
    assert papers + baselines == NAMES


@pytest.mark.parametrize("method", NAMES)
def test_it_learns(vectors: Path, tmp_path: Path, method: str) -> None:
    changes = {"epochs": 30, "learning_rate": 0.01, "evaluate_every": 30}
    run = loop.train(settings(vectors, method, **changes), tmp_path / "run")
    scores = json.loads(run.scores_file.read_text())
    assert scores["after"]["map@r"] > 1.3 * scores["before"]["map@r"]


@pytest.mark.parametrize("step", [3, 5, 11])  # five steps an epoch; 11 is in divide-and-conquer's joint epoch
@pytest.mark.parametrize("method", NAMES)
def test_it_continues_exactly_after_a_stop(vectors: Path, tmp_path: Path, method: str, step: int) -> None:
    wanted = settings(vectors, method)
    whole = loop.train(wanted, tmp_path / "whole")
    trainer = make_trainer(wanted, Run(tmp_path / "cut"))
    take_step = trainer._step

    def stopping(batch: Batch) -> None:
        take_step(batch)
        if trainer.position.step == step:
            os.kill(os.getpid(), signal.SIGINT)

    trainer._step = stopping  # type: ignore[method-assign]
    with pytest.raises(Interrupted):
        trainer.train()
    resumed = loop.resume(tmp_path / "cut")
    assert weights(resumed) == weights(whole)
    assert records(resumed) == records(whole)


@pytest.mark.parametrize("method", NAMES)
def test_its_config_repeats_the_run(vectors: Path, tmp_path: Path, method: str) -> None:
    run = loop.train(settings(vectors, method, epochs=1, evaluate_every=0), tmp_path / "first")
    again = loop.train(Settings.read(run.config_file), tmp_path / "second")
    assert weights(again) == weights(run)


@pytest.mark.parametrize("method", NAMES)
def test_it_can_be_trained_in_micro_batches(vectors: Path, tmp_path: Path, method: str) -> None:
    changes = {"epochs": 2, "evaluate_every": 0, "optimizer": "sgd"}
    whole = loop.train(settings(vectors, method, **changes), tmp_path / "whole")
    pieces = loop.train(settings(vectors, method, **changes, micro_batch=6), tmp_path / "pieces")
    losses = [[record["loss"] for record in run.metrics if "loss" in record] for run in (whole, pieces)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


@pytest.mark.parametrize("method", NAMES)
def test_every_description_is_filled_in(method: str) -> None:
    made = make_method(method)
    assert all((made.paper, made.batches, made.minimises, made.readout))
    assert type(made).__doc__ and all(f"{name}:" in str(type(made).__doc__) for name in made.settings())


@pytest.mark.parametrize(
    ("method", "changes", "expected"),
    [
        ("spectral", {"dim": 64}, r"always 0 unless a batch \(32 items\).*use dim=8"),
        ("divide-and-conquer", {"learners": 3}, "dim=8 is not divisible by the number of learners, 3; use dim=9"),
        ("divide-and-conquer", {"wraps": "magnet"}, "cannot wrap 'magnet'.*wrap one of .*rank"),
        ("divide-and-conquer", {"wraps": "divide-and-conquer"}, "cannot wrap 'divide-and-conquer'"),
        ("divide-and-conquer", {"wraps": "tripled"}, "did you mean 'triplet'"),
        ("divide-and-conquer", {"wraps": "rank:alfa=2"}, "did you mean 'alpha'"),
        ("divide-and-conquer", {"wraps": "rank:alpha"}, "write NAME=VALUE"),
        ("divide-and-conquer", {"wraps": "spectral", "dim": 64, "learners": 1}, "always 0"),
        ("divide-and-conquer", {"wraps": "triplet:per_class=1"}, "use per_class=2"),
        ("divide-and-conquer", {"partition": "kmeans"}, "did you mean 'k-means'"),
        ("divide-and-conquer", {"learners": 0}, "learners must be an integer >= 1, got 0"),
        ("magnet", {"per_cluster": 5}, "multiple of per_cluster=5"),
        ("magnet", {"per_cluster": 1}, "use per_cluster=2"),
        ("magnet", {"per_cluster": 0}, "use per_cluster=2"),
        ("magnet", {"normalize": "test"}, 'use normalize="always" or normalize="never"'),
        ("divide-and-conquer", {"learners": 8}, "each learner gets only one dimension,.* use dim=16"),
        (
            "divide-and-conquer",
            {"learners": 64, "dim": 128, "partition": "labels"},
            "20 classes cannot be divided among 64",
        ),
        (
            "facility-location",
            {"class_ratio": 0.03},
            "class_ratio=0.03 gives 1; use class_ratio=0.5",
        ),
        ("facility-location", {"class_ratio": 0.0}, "class_ratio must be > 0 and <= 1, got 0"),
        ("facility-location", {"sub_batch_share": 0.05}, "use sub_batch_share=0.5"),
        ("pml", {"loss_name": "CrossBatchMemory"}, "needs loss"),
        ("magnet", {"candidates": "indices"}, "did you mean 'index'"),
        ("magnet", {"active_share": 1.0}, "active_share must be a number >= 0 and < 1, got 1"),
        ("magnet", {"clusters": 0}, "clusters must be an integer >= 1, got 0"),
        ("triplet", {"per_class": 1}, "needs at least two items per class in a batch; use per_class=2"),
        ("npairs", {"batch_size": 31}, "batch_size must be even"),
        ("facility-location", {"class_ratio": 0.9}, "use another batch size or class ratio"),
        ("facility-location", {"class_ratio": 1.0}, "class_ratio=1.0 gives 32"),
        ("facility-location", {"sub_batches": 0}, "sub_batches must be an integer >= 1, got 0"),
        ("facility-location", {"exchange": "none"}, "exchange 'none' is unknown"),
        ("pml", {"loss_name": "CircelLoss"}, "did you mean 'pml:CircleLoss'"),
    ],
)
def test_impossible_settings_are_refused_before_training(
    vectors: Path, tmp_path: Path, method: str, changes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(UserError, match=expected):
        make_trainer(settings(vectors, method, **changes), Run(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", NAMES)
def test_data_without_enough_classes_or_pairs_are_refused(tmp_path: Path, method: str) -> None:
    np.savez(tmp_path / "one.npz", vectors=np.eye(64), labels=np.zeros(64, int))
    with pytest.raises(UserError, match=r"only one class|cannot be drawn|cannot fill"):
        make_trainer(settings(tmp_path / "one.npz", method, split="all"), Run(tmp_path / "run"))
    np.savez(tmp_path / "single.npz", vectors=np.eye(64), labels=np.arange(64))
    if make_method(method).needs_pairs:
        with pytest.raises(UserError, match=r"has only one item|cannot fill|cannot be drawn"):
            make_trainer(settings(tmp_path / "single.npz", method, split="all"), Run(tmp_path / "run"))


@pytest.mark.parametrize("method", NAMES)
def test_small_data_get_smaller_batches_automatically(tmp_path: Path, method: str) -> None:
    np.savez(tmp_path / "few.npz", vectors=np.eye(48)[:, :20], labels=np.arange(48) // 6)
    changes = {"batch_size": 0, "dim": 4, "epochs": 1}
    loop.train(settings(tmp_path / "few.npz", method, **changes), tmp_path / "run")


def test_the_error_names_the_default_batch_size_if_no_size_works(tmp_path: Path) -> None:
    np.savez(tmp_path / "few.npz", vectors=np.eye(48)[:, :20], labels=np.arange(48) // 2)
    with pytest.raises(UserError, match="a batch of 16 items from 4 classes cannot be drawn"):
        make_trainer(settings(tmp_path / "few.npz", "facility-location", batch_size=0), Run(tmp_path / "run"))


def test_all_losses_of_pytorch_metric_learning_can_be_prepared() -> None:
    from nearkin.losses.pml import pml_losses

    for name in pml_losses().keys() - {"CrossBatchMemory", "MultipleLosses", "RankedListLoss"}:
        method = make_method("pml", loss_name=name)
        method.prepare(classes=5, dim=8, epochs=1)


def test_a_run_of_an_unknown_method_can_be_evaluated(vectors: Path, tmp_path: Path) -> None:
    run = loop.train(settings(vectors, "triplet"), tmp_path / "run")
    run.config_file.write_text(run.config_file.read_text().replace('"triplet"', '"mine"'))
    assert "recall@1" in evaluate(run, recall_at=(1,)).scores


def test_per_cluster_decides_the_default_batch_size(vectors: Path, tmp_path: Path) -> None:
    trainer = make_trainer(settings(vectors, "magnet", per_cluster=7, batch_size=0), Run(tmp_path / "run"))
    assert trainer.sampler.batch_size == 84


def test_classes_that_were_trained_on_are_also_classified(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(20), 16)
    points = 3.0 * rng.normal(size=(20, 6))[labels] + rng.normal(size=(len(labels), 6))
    split = np.where(np.arange(len(labels)) % 16 < 12, "train", "test")
    np.savez(tmp_path / "same.npz", vectors=points, labels=labels, split=split)
    own = {"magnet": {"nearest_cluster_error"}, "softmax": {"classifier_error"}, "triplet": set()}
    for method, errors in own.items():
        changes = {"split": "official", "learning_rate": 0.1 if method == "softmax" else 0.0}
        run = loop.train(settings(tmp_path / "same.npz", method, **changes), tmp_path / method)
        after = json.loads(run.scores_file.read_text())["after"]
        assert {name for name in after if name.endswith("error")} == {"soft_knn_error", *errors}
        assert all(after[name] < 0.3 for name in errors)  # chance is 0.95
        assert evaluate(run, recall_at=(1, 2, 4, 8)).scores == pytest.approx(after)


def test_a_spectral_run_is_evaluated_with_singular_vectors_too(vectors: Path, tmp_path: Path) -> None:
    run = loop.train(settings(vectors, "spectral"), tmp_path / "run")
    after = json.loads(run.scores_file.read_text())["after"]
    assert {"with_sc_recall@1", "with_sc_map@r", "with_sc_nmi_geometric"} <= set(after)
    assert evaluate(run, recall_at=(1, 2, 4, 8)).scores == pytest.approx(after)
    again = evaluate(run, recall_at=(3,)).scores
    assert {name for name in again if "recall" in name} == {"recall@3", "with_sc_recall@3"}


def test_the_read_out_belongs_to_the_model_that_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second epoch is the best; its buffers must be restored at the end."""
    np.savez(tmp_path / "x.npz", vectors=np.random.default_rng(0).normal(size=(320, 6)), labels=np.arange(320) // 8)
    buffers: list[Any] = []
    scores = iter([0.1, 0.9, 0.2, 0.3])

    def measure(self: Trainer, part: str, kind: str, start: object = None) -> dict[str, float]:  # noqa: ARG001
        buffers.append({name: value.item() for name, value in self.method.buffers.items()})
        return {"recall@1": 0.0, "map@r": next(scores) if kind == "evaluation" else 0.0}

    monkeypatch.setattr(Trainer, "_measure", measure)
    changes = {"epochs": 4, "validation": 0.25, "learning_rate": 0.05}
    loop.train(settings(tmp_path / "x.npz", "magnet", **changes), tmp_path / "run")
    *before, first, second, third, fourth, final = buffers
    assert (
        not any("variance" in each for each in before)
        and len({first["variance"], second["variance"], third["variance"], fourth["variance"]}) == 4
    )
    assert final == second
