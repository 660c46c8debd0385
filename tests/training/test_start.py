"""Training starts from pretrained features, never ends below its start, and reports the improvement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

import nearkin
from nearkin.api import make_settings
from nearkin.errors import UserError
from nearkin.training import Run, Settings, loop
from nearkin.training.defaults import resolved, with_warmup
from nearkin.training.devices import make_fabric
from nearkin.training.fit_all import fit_all
from nearkin.training.prepare import load_splits
from nearkin.training.settings import ModelSettings
from nearkin.training.summary import describe_data, describe_training
from nearkin.training.verdict import advice, final_scores

QUICK: dict[str, Any] = {"epochs": 2, "batch_size": 16, "per_class": 4, "device": "cpu", "backbone": "linear"}


def settings(source: str, **changes: Any) -> Settings:
    return make_settings(source, "rank", QUICK | changes)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A tiny timm network with weights in a file, like a pretrained one."""
    file = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    torch.manual_seed(0)
    save_file(timm.create_model("test_efficientnet", num_classes=0).state_dict(), file)
    return {"backbone": "test_efficientnet", "weights": str(file), "image_size": 32}


def test_a_full_width_start_is_the_backbone_itself(vectors: str, tmp_path: Path) -> None:
    scores = loop.train(settings(vectors, dim=6), tmp_path / "run").scores
    for name in ("recall@1", "map@r"):
        assert scores["before"][name] == pytest.approx(scores["backbone"][name], abs=1e-6)
        assert scores["validation"]["before"][name] == pytest.approx(scores["validation"]["backbone"][name], abs=1e-6)


def test_the_start_is_measured_as_the_whole_model_would_measure_it(
    photos: Path, network: dict[str, Any], tmp_path: Path
) -> None:
    changes = network | {"epochs": 0, "dim": 8, "split": "first-half", "batch_size": 6, "per_class": 2}
    run = loop.train(settings(str(photos), **changes), tmp_path / "run")
    scores = run.scores
    assert scores["before"] == pytest.approx(scores["after"], abs=1e-6) and scores["backbone"]
    assert scores["verdict"].startswith("Not trained. Recall@1 on unseen classes")
    assert nearkin.load(run.folder).model.spec.dim == 8


def test_a_pretrained_backbone_has_its_own_defaults(photos: Path, network: dict[str, Any]) -> None:
    def filled(**changes: Any) -> Settings:
        chosen = make_settings(str(photos), "rank", {"device": "cpu", "per_class": 2, "batch_size": 4} | changes)
        return resolved(chosen, load_splits(chosen.data, 0), chosen.make_method())

    pretrained = filled(**network)
    frozen = filled(**network, freeze_backbone=True)
    scratch = filled(backbone="small", image_size=16)
    assert (pretrained.model.head_init, pretrained.model.freeze_batch_norm) == ("svd", True)
    assert (scratch.model.head_init, scratch.model.freeze_batch_norm, scratch.model.dim) == ("random", False, 128)
    assert pretrained.model.dim == 256  # the number of features, because it is below 512
    assert pretrained.training.backbone_learning_rate == pytest.approx(pretrained.training.learning_rate / 10)
    assert frozen.training.learning_rate < pretrained.training.learning_rate
    assert scratch.training.learning_rate == 1e-3
    assert with_warmup(scratch, steps=50).training.warmup_steps == 0
    assert with_warmup(pretrained.changed(training={"epochs": 4}), steps=50).training.warmup_steps == 10


@pytest.mark.parametrize(("given", "size"), [({}, 224), ({"image_size": 32}, 32)])
def test_what_a_module_of_ones_own_reads_is_said_before_training(
    photos: Path, given: dict[str, Any], size: int
) -> None:
    module = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten())
    chosen = make_settings(str(photos), "rank", {"backbone": "module:Mine", "batch_size": 4, "device": "cpu"} | given)
    splits = load_splits(chosen.data, 0)
    filled = resolved(chosen, splits, chosen.make_method(), module)
    assert filled.model.image_size == size
    said = f"{describe_data(splits, filled.data)}\n{describe_training(filled, make_fabric(filled.training), steps=1)}"
    assert f"module:Mine with your weights, input size {size}×{size} (image_size), 12-dimensional embedding" in said


def test_without_a_head_the_features_themselves_are_trained(
    photos: Path, network: dict[str, Any], tmp_path: Path
) -> None:
    changes = network | {"dim": 0, "split": "first-half", "batch_size": 6, "per_class": 2, "epochs": 1}
    run = loop.train(settings(str(photos), **changes), tmp_path / "run")
    model = nearkin.load(run.folder).model
    assert model.spec.head == "none" and model.spec.dim == 256
    assert run.scores["before"] == pytest.approx(run.scores["backbone"], abs=1e-6)
    with pytest.raises(UserError, match="nothing to train"):
        loop.train(settings(str(photos), **changes, freeze_backbone=True), tmp_path / "frozen")


def test_fit_all_trains_the_chosen_epochs_once_more_on_every_class(vectors: str, tmp_path: Path) -> None:
    run = loop.train(settings(vectors, epochs=4, dim=4, schedule="cosine"), tmp_path / "run")
    scores = run.scores
    run.write_scores(scores | {"best_epoch": 2})
    final = fit_all(Run(run.folder))
    assert final.folder == tmp_path / "run-all"
    records = [record for record in final.metrics if record["kind"] == "training"]
    chosen = [record for record in run.metrics if record["kind"] == "training"]
    assert len(records) == 2
    assert final.settings().training.epochs == 4 and final.settings().data.split == "all"
    assert records[-1]["learning_rate"] == pytest.approx(chosen[1]["learning_rate"], rel=0.2)  # did not decay to 0


def test_what_cannot_learn_is_refused_before_anything_is_computed(vectors: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is nothing to train"):
        loop.train(settings(vectors, dim=0), tmp_path / "run")


def test_learners_need_a_head_to_share(vectors: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs a head; use dim=512"):
        loop.train(make_settings(vectors, "divide-and-conquer", {"backbone": "linear", "dim": 0}), tmp_path / "run")


def test_training_stops_after_no_more_than_all_epochs(vectors: str, tmp_path: Path) -> None:
    run = loop.train(settings(vectors, dim=4, epochs=2, stop_after=5), tmp_path / "run")
    assert [record["epoch"] for record in run.metrics if record["kind"] == "training"] == [1, 2]


def test_a_run_on_all_classes_tells_what_the_first_run_was_worth(vectors: str, tmp_path: Path) -> None:
    run = nearkin.train(vectors, out=tmp_path / "run", fit_all=True, **QUICK | {"dim": 4, "validation": 0.0})
    told = Run(tmp_path / "run").scores["verdict"]
    assert run.folder == tmp_path / "run-all"
    assert told in run.scores["verdict"] and run.scores["measured_by"] == "run"
    assert "Trained on all classes" in (run.model_folder / "README.md").read_text(encoding="utf-8")


def test_an_untrained_choice_is_fitted_without_training(vectors: str, tmp_path: Path) -> None:
    run = loop.train(settings(vectors, dim=4), tmp_path / "run")
    run.write_scores(run.scores | {"best_epoch": 0})
    assert not any(record["kind"] == "training" for record in fit_all(run).metrics)


class TestVerdict:
    def records(self, backbone: float, *validation: float) -> list[dict[str, Any]]:
        start, *rest = validation
        return [
            {"kind": "backbone", "split": "test", "recall@1": backbone, "map@r": backbone},
            {"kind": "before", "split": "validation", "recall@1": start, "map@r": start},
            *({"kind": "training", "loss": 0.1} for _ in rest),
            *(
                {"kind": "evaluation", "split": "validation", "epoch": n, "recall@1": x, "map@r": x}
                for n, x in enumerate(rest, 1)
            ),
        ]

    def verdict(self, backbone: float, after: float, best_epoch: int, *validation: float) -> tuple[str, str]:
        records = self.records(backbone, *validation)
        scores = final_scores(
            records, {"recall@1": after, "map@r": after}, "best", best_epoch, "its features projected", "Try"
        )
        return scores["outcome"], scores["verdict"]

    def test_better(self) -> None:
        outcome, sentence = self.verdict(0.641, 0.66, 1, 0.5, 0.6)
        assert outcome == "better" and "0.641 → 0.660 (backbone alone → trained)" in sentence

    def test_the_start_was_kept(self) -> None:
        outcome, sentence = self.verdict(0.641, 0.631, 0, 0.6, 0.5)
        assert outcome == "not better"
        assert "did not beat the backbone alone (Recall@1 on unseen classes: 0.641)" in sentence
        assert "The saved model is its features projected (0.631). Try" in sentence

    @pytest.mark.parametrize(
        ("model", "vectors", "expected"),
        [
            ({"backbone": "small", "weights": "none"}, False, "more epochs … a pretrained backbone"),
            ({"backbone": "mlp", "weights": "none"}, True, "more epochs … the features as they are"),
            ({"backbone": "linear", "weights": "none"}, True, "more classes … the features as they are"),
            ({"backbone": "module:Mine", "weights": "none"}, False, "more epochs … another learning rate"),
            (
                {"backbone": "module:Mine", "weights": "own", "freeze_backbone": True},
                False,
                "more … a stronger backbone",
            ),
            ({"backbone": "resnet50", "freeze_backbone": True}, False, "more … (`nearkin index NAME PHOTOS`)"),
            ({"backbone": "resnet50"}, False, "more … the backbone without a head (a dim of 0)"),
            ({"backbone": "resnet50", "dim": 0}, False, "more … a stronger backbone"),
        ],
    )
    def test_the_advice_suits_the_model(self, model: dict[str, Any], vectors: bool, expected: str) -> None:
        first, last = expected.split(" … ")
        found = advice(ModelSettings(**model), vectors)
        assert found.startswith(f"Try {first}") and found.rpartition(", or ")[2].endswith(f"{last}.")

    def test_better_on_validation_but_not_on_test(self) -> None:
        outcome, sentence = self.verdict(0.641, 0.62, 1, 0.5, 0.6)
        assert outcome == "not better" and "0.641 → 0.620" in sentence and "did not help" in sentence

    @pytest.mark.parametrize(
        ("recall", "map_at_r", "expected"),
        [
            (0.7, 0.5, "better"),
            (0.6, 0.5, "better"),
            (0.5, 0.5, "mixed"),
            (0.7, 0.3, "mixed"),
            (0.6, 0.3, "not better"),
        ],
    )
    def test_scores_that_disagree_are_a_mixed_result(self, recall: float, map_at_r: float, expected: str) -> None:
        records = [
            {"kind": "before", "split": "test", "recall@1": 0.6, "map@r": 0.4},
            {"kind": "training", "loss": 0.1},
        ]
        scores = final_scores(records, {"recall@1": recall, "map@r": map_at_r}, "last epoch", 1, "")
        assert scores["outcome"] == expected
        assert ("Mixed result" in scores["verdict"]) == (expected == "mixed")

    def test_the_last_epoch_is_no_fall_where_it_was_kept(self, caplog: pytest.LogCaptureFixture) -> None:
        scores = final_scores(self.records(0.6, 0.5, 0.7, 0.2), {}, "last epoch", 2, "")
        assert scores["validation"]["best"]["map@r"] == 0.2 and not caplog.text

    def test_without_a_test_split_the_validation_classes_speak(self) -> None:
        scores = final_scores(self.records(0.6, 0.5, 0.7), {}, "best", 1, "")
        assert scores["outcome"] == "better" and "on validation classes: 0.500 → 0.700" in scores["verdict"]

    def test_nothing_measured(self) -> None:
        assert final_scores([{"kind": "training", "loss": 1.0}], {}, "last epoch", 1, "")["outcome"] == "unknown"

    @pytest.mark.parametrize(("last", "warned"), [(0.4, True), (0.59, False)])
    def test_a_last_epoch_clearly_below_the_best_is_said(
        self, last: float, warned: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        self.verdict(0.5, 0.6, 1, 0.5, 0.6, last)
        assert ("clearly worse than the best (0.600, epoch 1)" in caplog.text) is warned


def test_classes_are_held_out_unless_the_user_says_otherwise(vectors: str) -> None:
    def held_out(**changes: Any) -> int:
        chosen = settings(vectors, **changes)
        validation = load_splits(chosen.data, 0).validation
        return 0 if validation is None else len(validation.present_classes)

    assert held_out() == 4  # a fifth of 12 would be too few
    assert held_out(validation=0.25) == 3
    assert held_out(validation=0.0) == held_out(keep="last") == held_out(keep="best-on-test") == 0
    assert held_out(evaluate_every=0) == held_out(split="all") == 0


def test_data_with_a_validation_split_keep_it(tmp_path: Path) -> None:
    labels = np.repeat(np.arange(20), 4)
    split = np.where(labels < 12, "train", np.where(labels < 15, "validation", "test"))
    np.savez(tmp_path / "x.npz", vectors=np.random.default_rng(0).normal(size=(80, 3)), labels=labels, split=split)
    splits = load_splits(settings(str(tmp_path / "x.npz")).data, 0)
    assert splits.validation is not None and splits.validation.present_classes.tolist() == [12, 13, 14]
