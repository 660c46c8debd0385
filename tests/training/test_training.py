"""The loop: it learns, a resumed run ends with the same weights, and errors say what went wrong."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TINY_GLYPHS
from torch import Tensor, nn

import nearkin
from nearkin.api import evaluate, make_settings
from nearkin.errors import Interrupted, UserError
from nearkin.methods import Every, Method, register
from nearkin.models import Embedder
from nearkin.sampling import GroupSampler, LabelBatchSampler
from nearkin.space import Space
from nearkin.training import Run, Settings, loop, monitoring
from nearkin.training.loop import Trainer, make_trainer

QUICK: dict[str, Any] = {"epochs": 3, "batch_size": 16, "per_class": 4, "dim": 8, "device": "cpu"}


def settings(**changes: Any) -> Settings:
    source = changes.pop("source", TINY_GLYPHS)
    method = changes.pop("method", "rank")
    return make_settings(source, method, QUICK | changes)


def weights(run: Run) -> bytes:
    return (run.model_folder / "model.safetensors").read_bytes()


def metrics_without_speed(run: Run) -> list[dict[str, Any]]:
    timed = ("items_per_second", "refresh_share")
    return [{k: v for k, v in record.items() if k not in timed} for record in run.metrics]


def stop_after(trainer: Trainer, steps: int, how: Callable[[], None]) -> None:
    """Calls ``how`` after ``steps`` steps of a trainer."""
    original = trainer._step

    def step(batch: Any) -> None:
        original(batch)
        if trainer.position.step == steps:
            how()

    trainer._step = step  # type: ignore[method-assign]


def test_training_learns_and_leaves_a_complete_run(tmp_path: Path) -> None:
    run = loop.train(settings(epochs=12), tmp_path / "run")
    scores = json.loads(run.scores_file.read_text())
    assert scores["after"]["map@r"] > scores["before"]["map@r"] + 0.05
    assert scores["chosen"] == "last epoch"
    records = run.metrics
    losses = [record["loss"] for record in records if record["kind"] == "training"]
    assert len(losses) == 12 and losses[-1] < losses[0]
    assert {path.name for path in run.folder.iterdir()} == {
        "checkpoints", "config.toml", "data.sha256", "metrics.jsonl", "model", "scores.json", "tensorboard",
    }  # fmt: skip
    assert Embedder.load(run.folder).encode(np.zeros((2, 16, 16), np.uint8)).shape == (2, 8)


def test_the_same_settings_give_the_same_weights_and_others_do_not(tmp_path: Path) -> None:
    first, again, other = (
        loop.train(settings(seed=seed), tmp_path / name) for seed, name in ((0, "a"), (0, "b"), (1, "c"))
    )
    assert weights(first) == weights(again) != weights(other)


def test_a_run_is_repeated_from_its_config(tmp_path: Path) -> None:
    run = loop.train(settings(validation=0.3, alpha=2.0), tmp_path / "a")
    again = loop.train(Settings.read(run.config_file), tmp_path / "b")
    assert weights(run) == weights(again)
    assert run.config_file.read_text() == again.config_file.read_text()


@pytest.mark.parametrize("step", [2, 3, 4])  # three steps per epoch: within, at the end, within the next
def test_an_interrupted_run_continues_to_the_same_weights(tmp_path: Path, step: int) -> None:
    whole = loop.train(settings(), tmp_path / "whole")
    trainer = make_trainer(settings(), Run(tmp_path / "cut"))
    stop_after(trainer, step, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(Interrupted, match="continue with: nearkin resume"):
        trainer.train()
    resumed = loop.resume(tmp_path / "cut")
    assert weights(resumed) == weights(whole)
    assert metrics_without_speed(resumed) == metrics_without_speed(whole)
    assert resumed.scores_file.read_text() == whole.scores_file.read_text()


@pytest.mark.parametrize("method", ["magnet", "divide-and-conquer"])
def test_a_killed_run_continues_to_the_same_weights(tmp_path: Path, method: str) -> None:
    """SIGKILL between checkpoints, in another process, so that nothing can be cleaned up."""
    quick = {name: value for name, value in QUICK.items() if name != "per_class"}
    changes = {"epochs": 40, "checkpoint_steps": 5, "evaluate_every": 0}
    common = make_settings(TINY_GLYPHS, method, quick | changes)
    whole = loop.train(common, tmp_path / "whole")
    config = tmp_path / "config.toml"
    config.write_text(common.to_toml())
    cut = tmp_path / "cut"
    command = [sys.executable, "-m", "nearkin", "train", "--config", str(config), "--out", str(cut)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (cut / "checkpoints" / "last.pt").exists():
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.01)
    process.kill()
    process.wait()
    at = torch.load(cut / "checkpoints" / "last.pt", weights_only=True)["position"]["step"]
    assert 0 < at < 120
    assert weights(loop.resume(cut)) == weights(whole)


def test_a_run_that_never_reached_a_checkpoint_starts_over(tmp_path: Path) -> None:
    whole = loop.train(settings(), tmp_path / "whole")
    early = make_trainer(settings(), Run(tmp_path / "early")).run
    early.log({"kind": "before", "epoch": 0, "step": 0, "split": "test", "recall@1": 0.5, "map@r": 0.5})
    with early.metrics_file.open("a") as stream:
        stream.write('{"kind": "torn')
    assert weights(loop.resume(early.folder)) == weights(whole)
    assert metrics_without_speed(early) == metrics_without_speed(whole)


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    run = loop.train(settings(), tmp_path / "run")
    before = weights(run), metrics_without_speed(run)
    again = loop.resume(run.folder)
    assert (weights(again), metrics_without_speed(again)) == before


@pytest.mark.parametrize(
    ("changes", "passes", "saved"),
    [
        ({}, 4, 3),  # before, and after every epoch
        ({"epochs": 0}, 1, 1),
        ({"evaluate_every": 0}, 1, 3),
        ({"keep": "best-on-test"}, 4, 3),  # every epoch is better than the one before
        ({"keep": "best-on-test", "learning_rate": 0.03}, 5, 1),  # the first epoch is the best
        ({"keep": "last", "validation": 0.34}, 5, 3),  # other classes are evaluated during training than at the end
    ],
)
def test_no_model_is_embedded_or_saved_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], passes: int, saved: int
) -> None:
    calls: list[str] = []
    embed, save = loop.embed_dataset, Run.save_model
    monkeypatch.setattr(loop, "embed_dataset", lambda *args: calls.append("embed") or embed(*args))
    monkeypatch.setattr(Run, "save_model", lambda *args: calls.append("save") or save(*args))
    run = loop.train(settings(**changes), tmp_path / "run")
    assert (calls.count("embed"), calls.count("save")) == (passes, saved)
    kept = evaluate(run).scores
    assert run.scores["after"] == pytest.approx({name: kept[name] for name in run.scores["after"]})


def test_image_files_with_augmentation_resume_exactly(photos: Path, tmp_path: Path) -> None:
    images = {"source": str(photos), "backbone": "small", "image_size": 16, "per_class": 3, "batch_size": 9}
    whole = loop.train(settings(**images), tmp_path / "whole")
    assert whole.settings().data.augment == "crop-flip"
    trainer = make_trainer(settings(**images), Run(tmp_path / "cut"))
    stop_after(trainer, 3, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted):
        trainer.train()
    assert weights(loop.resume(tmp_path / "cut")) == weights(whole)


def test_a_full_disk_while_saving_harms_no_earlier_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = loop.train(settings(), tmp_path / "whole")
    trainer = make_trainer(settings(checkpoint_steps=2), Run(tmp_path / "full"))
    write = Path.write_bytes

    def fills_up(target: Path, content: bytes) -> int:
        if trainer.position.step == 4:
            write(target, b"the beginning of a check")
            raise OSError(28, "No space left on device")
        return write(target, content)

    monkeypatch.setattr(Path, "write_bytes", fills_up)
    with pytest.raises(UserError, match="no space left on device; files that were saved earlier are intact"):
        trainer.train()
    monkeypatch.undo()
    assert list((tmp_path / "full" / "checkpoints").iterdir()) == [trainer.run.checkpoint_file]
    assert weights(loop.resume(tmp_path / "full")) == weights(whole)


class TestChoosing:
    def curve(self, monkeypatch: pytest.MonkeyPatch, values: list[float]) -> list[str]:
        """Replaces the evaluation by a given curve; returns a list of the evaluated splits."""
        measured: list[str] = []
        remaining = list(values)

        def measure(self: Trainer, part: str, kind: str, start: object = None) -> dict[str, float]:  # noqa: ARG001
            measured.append(part)
            starts = 0.05 if part == "validation" else 0.0
            return {"recall@1": 0.0, "map@r": remaining.pop(0) if kind == "evaluation" else starts}

        monkeypatch.setattr(Trainer, "_measure", measure)
        return measured

    def test_the_best_on_validation_is_kept(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        common = {"validation": 0.3, "schedule": "constant"}
        two_epochs = loop.train(settings(**common, epochs=2, keep="last"), tmp_path / "two")
        measured = self.curve(monkeypatch, [0.1, 0.5, 0.3, 0.2])
        best = loop.train(settings(**common, epochs=4), tmp_path / "best")
        assert weights(best) == weights(two_epochs)
        assert measured == ["validation", "test", *["validation"] * 4, "test"]

    def test_the_start_is_kept_where_no_epoch_is_better(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        untrained = loop.train(settings(validation=0.3, epochs=0), tmp_path / "untrained")
        self.curve(monkeypatch, [0.04, 0.05, 0.03])
        run = loop.train(settings(validation=0.3), tmp_path / "run")
        assert weights(run) == weights(untrained)
        assert run.scores["best_epoch"] == 0

    def test_patience_ends_training(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        measured = self.curve(monkeypatch, [0.1, 0.5, 0.3, 0.2, 0.9])
        with caplog.at_level(logging.INFO):
            loop.train(settings(validation=0.3, epochs=9, patience=2), tmp_path / "run")
        assert "stopped early: 2 evaluations without improvement" in caplog.text
        assert measured.count("validation") == 5  # once before the first epoch

    def test_choosing_on_test_must_be_asked_for_and_is_said(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        measured = self.curve(monkeypatch, [0.1, 0.2, 0.3])
        run = loop.train(settings(keep="best-on-test"), tmp_path / "run")
        assert set(measured) == {"test"}
        assert "optimistic" in caplog.text
        assert json.loads(run.scores_file.read_text())["chosen"] == "best MAP@R on the test split"

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({"keep": "best-on-validation"}, "no validation classes"),
            ({"patience": 3}, "patience needs validation classes"),
            ({"keep": "best-on-tests"}, "did you mean 'best-on-test'"),
            ({"keep": "best-on-test", "split": "all"}, "no test split"),
            ({"batch_size": 100}, "48 training items cannot fill a batch of 100; use batch_size=24 or less"),
        ],
    )
    def test_choices_that_the_data_rule_out_are_refused_before_weights_are_loaded(
        self, tmp_path: Path, changes: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(loop, "build_model", None)
        with pytest.raises(UserError, match=expected):
            make_trainer(settings(**changes), Run(tmp_path / "run"))
        assert not (tmp_path / "run").exists()


def test_a_nan_stops_the_run_before_it_reaches_the_weights(tmp_path: Path) -> None:
    trainer = make_trainer(settings(), Run(tmp_path / "run"))
    original = trainer.method.loss.forward

    def broken(embeddings: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = original(embeddings, labels)
        return loss * float("nan") if trainer.position.step == 4 else loss

    trainer.method.loss.forward = broken  # type: ignore[method-assign]
    with pytest.raises(UserError, match=r"the loss became nan at step 4.*lower the learning rate, use clip_norm=1.0"):
        trainer.train()
    assert all(parameter.isfinite().all() for parameter in trainer.model.parameters())


def test_a_collapse_is_said_with_advice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = make_trainer(settings(epochs=1, learning_rate=1e-9), Run(tmp_path / "run"))
    nn.init.zeros_(trainer.model.head.project[0].weight)
    with caplog.at_level(logging.WARNING):
        trainer.train()
    assert "the embeddings are collapsing" in caplog.text


def test_spread_is_zero_for_one_point_and_one_for_a_centred_cloud() -> None:
    assert monitoring.spread(torch.full((5, 3), 2.0)) == pytest.approx(0, abs=1e-6)
    assert monitoring.spread(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])) == pytest.approx(1)


def test_a_frozen_backbone_is_computed_once_and_stays_as_it_was(photos: Path, tmp_path: Path) -> None:
    images = {"source": str(photos), "backbone": "test_resnet.r160_in1k", "weights": "none", "image_size": 32}
    frozen = settings(**images, freeze_backbone=True, per_class=3, batch_size=9, learning_rate=0.01)
    trainer = make_trainer(frozen, Run(tmp_path / "a"))
    before = {name: value.clone() for name, value in trainer.model.backbone.state_dict().items()}
    head = trainer.model.head.project[0].weight.clone()
    run = trainer.train()
    after = trainer.model.backbone.state_dict()
    assert all(torch.equal(after[name].cpu(), value) for name, value in before.items())
    assert not torch.equal(trainer.model.head.project[0].weight, head)
    scores = json.loads(run.scores_file.read_text())["after"]
    assert nearkin_scores(run) == pytest.approx(scores["map@r"], abs=1e-6)  # the saved model is complete
    cached = sorted(Path(os.environ["NEARKIN_CACHE"], "features").iterdir())
    loop.train(frozen, tmp_path / "b")
    assert sorted(Path(os.environ["NEARKIN_CACHE"], "features").iterdir()) == cached


def nearkin_scores(run: Run) -> float:
    from nearkin.api import evaluate

    return evaluate(run, recall_at=(1,)).scores["map@r"]


def test_feature_vectors_are_trained_on(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(8, 6))
    labels = np.repeat(np.arange(8), 12)
    np.savez(tmp_path / "x.npz", vectors=1000 + 50 * (centres[labels] + rng.normal(size=(96, 6))), labels=labels)
    run = loop.train(settings(source=str(tmp_path / "x.npz"), backbone="linear"), tmp_path / "run")
    model = Embedder.load(run.folder).model
    assert model.standardise.mean.mean() == pytest.approx(1000, rel=0.05)
    assert nearkin.load(run.folder).encode(np.ones((2, 6))).shape == (2, 8)


def small_files(photos: Path) -> dict[str, Any]:
    return {"source": str(photos), "backbone": "small", "image_size": 16, "per_class": 3, "batch_size": 9}


def test_a_signal_to_the_whole_group_still_saves(photos: Path, tmp_path: Path) -> None:
    """Ctrl-C in a terminal and SIGTERM from a scheduler also reach the decoding workers."""
    whole = loop.train(settings(**small_files(photos), epochs=60, evaluate_every=0), tmp_path / "whole")
    (tmp_path / "c.toml").write_text(whole.config_file.read_text())
    cut = tmp_path / "cut"
    command = [sys.executable, "-m", "nearkin", "train", "--config", str(tmp_path / "c.toml"), "--out", str(cut)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while not (cut / "checkpoints" / "last.pt").exists():
        assert process.poll() is None, "the run ended before it could be stopped"
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGTERM)
    _, message = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "continue with: nearkin resume" in message
    assert weights(loop.resume(cut)) == weights(whole)


def test_metrics_are_not_doubled_when_a_run_dies_after_an_epochs_last_checkpoint(tmp_path: Path) -> None:
    whole = loop.train(settings(checkpoint_steps=3), tmp_path / "whole")
    trainer = make_trainer(settings(checkpoint_steps=3), Run(tmp_path / "cut"))

    def dies(loss: float) -> None:  # noqa: ARG001
        raise SystemExit

    trainer._choose_model = dies  # type: ignore[method-assign]
    with pytest.raises(SystemExit):
        trainer.train()
    assert metrics_without_speed(loop.resume(tmp_path / "cut")) == metrics_without_speed(whole)


def test_changed_data_are_noticed(photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = loop.train(settings(**small_files(photos)), tmp_path / "run")
    (photos / "class0").rename(photos / "class9")  # changes the halves of the classes
    with pytest.raises(UserError, match="have changed since the run started"):
        loop.resume(run.folder)
    nearkin_scores(run)
    assert "may have been trained on test classes" in caplog.text


def test_what_was_found_is_said_once_before_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_trainer(settings(), Run(tmp_path / "run"))
    for line in (
        "data          glyphs: 96 images, 12 classes",
        "  test        48 images,  6 classes (unseen in training)",
        "training      rank on cpu, batch size 16, 3 steps per epoch, 3 epochs",
    ):
        assert line in caplog.text
    caplog.clear()
    make_trainer(settings(), Run(tmp_path / "run"), resumed=True)
    assert "96 images, 12 classes" not in caplog.text


@pytest.mark.parametrize("how", [{"split": "first-half"}, {"split_seed": 3}, {}])
def test_a_copy_of_the_data_is_split_as_the_run_was(vectors: str, tmp_path: Path, how: dict[str, Any]) -> None:
    run = loop.train(settings(source=vectors, epochs=0, **how), tmp_path / "run")
    copy = shutil.copy(vectors, tmp_path / "copy.npz")
    own, other = (evaluate(run, data=data, split="test", recall_at=1).scores for data in (None, copy))
    assert own == other


def test_a_run_can_be_used_from_another_folder(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(photos.parent)
    run = loop.train(settings(**small_files(photos) | {"source": "photos"}), tmp_path / "run")
    monkeypatch.chdir("/")
    assert nearkin_scores(run) >= 0


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"source": "few"}, "the test split .* cannot be evaluated"),
        ({"source": "single"}, "the test split .* cannot be"),
    ],
)
def test_a_split_that_could_not_be_measured_is_refused_before_training(
    tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    rng = np.random.default_rng(0)
    labels = {"few": [0] * 10 + [1] * 10 + [2] * 10, "single": [0] * 10 + [1] * 10 + [2, 3]}[changes["source"]]
    np.savez(tmp_path / "x.npz", vectors=rng.normal(size=(len(labels), 4)), labels=labels)
    with pytest.raises(UserError, match=expected):
        make_trainer(settings(source=str(tmp_path / "x.npz"), split="first-half"), Run(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_feature_that_is_constant_in_training_is_not_blown_up(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(64, 3))
    vectors[:32, 0] = 5.0
    np.savez(tmp_path / "x.npz", vectors=vectors, labels=np.arange(64) // 8)
    halves = {"source": str(tmp_path / "x.npz"), "split": "first-half"}
    trainer = make_trainer(settings(**halves, backbone="linear"), Run(tmp_path / "run"))
    assert trainer.model.standardise.std[0] == 1.0


class TestRefreshingMethods:
    """Methods that need the whole space rely only on the contract of the loop."""

    @staticmethod
    def method(every: Every) -> type[Method]:
        @register
        @dataclass
        class Looking(Method):
            name = "looking-test"
            paper = batches = minimises = ""

            def __post_init__(self) -> None:
                self.loss = nn.Linear(8, 1)  # a loss with parameters
                self.refresh_every = every
                self.looks: list[Space] = []
                self.target = torch.zeros(8)

            def sampler(self, labels: Any, batch_size: int, seed: int) -> LabelBatchSampler:
                return GroupSampler(labels, batch_size, 4, seed)

            def on_refresh(self, space: Space) -> None:
                self.looks.append(space)
                self.target = space.embeddings.mean(dim=0)

            def step(self, embed: Any, batch: Any) -> Tensor:
                scores: Tensor = self.loss(embed(batch.inputs) - self.target)
                return scores.square().mean()

            def state_dict(self) -> dict[str, Any]:
                return {**super().state_dict(), "target": self.target}

            def load_state_dict(self, state: dict[str, Any]) -> None:
                super().load_state_dict(state)
                self.target = state["target"]

        return Looking

    def test_what_they_saw_survives_a_stop(self, tmp_path: Path) -> None:
        self.method(Every(steps=2))
        changes = {k: v for k, v in QUICK.items() if k != "per_class"}
        wanted = make_settings(TINY_GLYPHS, "looking-test", changes)
        whole = loop.train(wanted, tmp_path / "whole")
        assert weights(loop.train(wanted, tmp_path / "again")) == weights(whole)
        trainer = make_trainer(wanted, Run(tmp_path / "cut"))
        stop_after(trainer, 3, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(Interrupted):
            trainer.train()
        assert weights(loop.resume(tmp_path / "cut")) == weights(whole)

    @pytest.mark.parametrize(
        ("every", "looks"), [(Every(epochs=1), 3), (Every(epochs=2), 2), (Every(steps=2), 5), (Every(), 0)]
    )
    def test_they_look_as_often_as_they_want(self, tmp_path: Path, every: Every, looks: int) -> None:
        self.method(every)
        changes = {k: v for k, v in QUICK.items() if k != "per_class"}
        trainer = make_trainer(make_settings(TINY_GLYPHS, "looking-test", changes), Run(tmp_path / "run"))
        before = [parameter.clone() for parameter in trainer.method.loss.parameters()]
        trainer.train()
        spaces = trainer.method.looks  # type: ignore[attr-defined]
        assert len(spaces) == looks
        assert all(len(space) == 48 and space.dim == 8 for space in spaces)
        after = trainer.method.loss.parameters()
        assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"optimizer": "adamm"}, "did you mean 'adam"),
        ({"schedule": "cosin"}, "did you mean 'cosine'"),
        ({"learning_rate": -0.1}, "learning_rate must be a number >= 0"),
        ({"seed": -1}, "seed must be an integer >= 0"),
        ({"weight_decay": -0.1}, "weight_decay must be a number >= 0"),
        ({"clip_norm": -1.0}, "clip_norm must be a number >= 0"),
        ({"epochs": 1.5}, "epochs must be an integer"),
        ({"epochs": -1}, "epochs must be an integer >= 0, got -1; leave it out for the default"),
        ({"epoch": 1}, "did you mean 'epochs'"),
        ({"alpha": "big"}, "alpha must be a number"),
        ({"method": "ranks"}, "did you mean 'rank'"),
        ({"device": "gpu"}, "device 'gpu' is unknown"),
        ({"precision": "bf16-mixed", "device": "cpu"}, "needs a CUDA device"),
        ({"backbone": "mlp"}, "takes feature vectors"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        make_trainer(settings(**changes), Run(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_the_usual_batch_shrinks_to_what_the_data_can_fill(tmp_path: Path) -> None:
    trainer = make_trainer(settings(batch_size=0), Run(tmp_path / "run"))  # 6 classes × 4 items fill 24 places
    assert trainer.sampler.batch_size == 16
    assert "batch_size = 16" in trainer.run.config_file.read_text()


def test_a_run_that_failed_before_its_first_checkpoint_does_not_block_its_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="lower the learning rate"):
        loop.train(settings(learning_rate=1e30), tmp_path / "run")
    mended = loop.train(settings(), tmp_path / "run")
    assert metrics_without_speed(mended) == metrics_without_speed(loop.train(settings(), tmp_path / "fresh"))


def test_a_folder_that_is_no_run_is_not_called_one(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UserError, match="already exists and is not a run"):
        loop.train(settings(), tmp_path)


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    loop.train(settings(epochs=0), tmp_path / "run")
    with pytest.raises(UserError, match="already exists; continue it with `nearkin resume"):
        loop.train(settings(), tmp_path / "run")
