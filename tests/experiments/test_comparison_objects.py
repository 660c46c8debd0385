"""Comparisons of Python objects: data in memory, the user's own network and losses."""

from __future__ import annotations

import threading
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_metric_learning.losses import MultiSimilarityLoss, ProxyAnchorLoss
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import nearkin
from nearkin.errors import Interrupted, UserError
from nearkin.experiments import ComparisonResult, compare
from nearkin.experiments.comparison_plan import backbone_digest, rows_of
from nearkin.methods import LossModule, Triplet
from nearkin.training import Run, loop
from nearkin.training.loop import Trainer
from nearkin.training.objects import Objects

QUICK: dict[str, Any] = {"epochs": 2, "batch_size": 16, "dim": 8, "device": "cpu", "logger": "none"}
CLASSES = 9  # training classes: of 24, half are test classes, and a quarter of the rest is held out


@pytest.fixture
def arrays(vectors: str) -> tuple[Any, Any]:
    with np.load(vectors) as file:
        return file["vectors"].astype(np.float32), file["labels"]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the runs that were actually trained."""
    names: list[str] = []
    original = loop.train

    def noting(settings: Any, folder: Path, *args: Any, **objects: Any) -> Any:
        names.append(folder.name)
        return original(settings, folder, *args, **objects)

    monkeypatch.setattr("nearkin.experiments.runs.train", noting)
    return names


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(6, 12)


def test_data_in_memory_give_what_the_same_data_in_a_file_give(
    vectors: str, arrays: tuple[Any, Any], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"seeds": 2, "concatenate": True, **QUICK, "backbone": "linear"}
    file = compare(vectors, ["triplet"], out=tmp_path / "file", **options)
    tensors = TensorDataset(torch.tensor(arrays[0]), torch.tensor(arrays[1]))
    found = compare(tensors, ["triplet"], out=tmp_path / "tensors", **options)
    assert found.scores == file.scores and found.backbone == file.backbone and found.concatenated == file.concatenated
    assert found.command.startswith("nearkin.compare(..., ['triplet'], seeds=2")


def test_every_run_trains_a_copy_of_the_module_as_it_was_given(arrays: tuple[Any, Any], tmp_path: Path) -> None:
    backbone, methods = network(), [Triplet(), ProxyAnchorLoss(CLASSES, 8)]
    before = deepcopy([*backbone.state_dict().values(), *methods[1].state_dict().values()])
    found = compare(arrays, methods, out=tmp_path / "out", seeds=2, concatenate=True, backbone=backbone, **QUICK)
    after = [*backbone.state_dict().values(), *methods[1].state_dict().values()]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert set(found.scores) == {"triplet", "ProxyAnchorLoss"}
    alone = nearkin.train(
        arrays, Triplet(), tmp_path / "alone", backbone=network(), seed=1, validation=0.25, patience=0, **QUICK
    )
    first = Run(tmp_path / "out" / "triplet-0").scores["backbone"]
    for score, values in found.scores["triplet"].items():
        assert values[1] == alone.scores["after"][score] and found.backbone[score] == first[score]
    assert f"backbone={type(backbone).__name__}(...)" in found.command


def test_losses_have_rows_by_their_class_and_two_of_a_class_have_two(
    arrays: tuple[Any, Any], tmp_path: Path, trained: list[str]
) -> None:
    def compared(alpha: float) -> ComparisonResult:
        other = LossModule.of(MultiSimilarityLoss(alpha=50), per_class=8)
        methods = [MultiSimilarityLoss(alpha=alpha), "triplet", other]
        return compare(arrays, methods, out=tmp_path / "out", seeds=1, per_class=2, **QUICK)

    found = compared(alpha=2)
    runs = {name: Run(tmp_path / "out" / f"{name}-0") for name in found.scores}
    batches = {name: run.settings().method_settings["per_class"] for name, run in runs.items()}
    assert batches == {"MultiSimilarityLoss": 2, "triplet": 2, "MultiSimilarityLoss_2": 8}
    same = QUICK | {"per_class": 2, "validation": 0.25, "patience": 0}
    alone = nearkin.train(arrays, loss=MultiSimilarityLoss(alpha=2), out=tmp_path / "alone", **same)
    assert found.scores["MultiSimilarityLoss"]["map@r"] == [alone.scores["after"]["map@r"]]
    assert (
        "[MultiSimilarityLoss(...), 'triplet', LossModule.of(MultiSimilarityLoss(...), per_class=8)]" in found.command
    )
    assert len(trained) == 3 and compared(alpha=2).scores == found.scores and len(trained) == 3
    with pytest.raises(UserError, match="has runs of MultiSimilarityLoss with other settings"):
        compared(alpha=3)


def test_an_interrupted_comparison_goes_on_with_the_same_objects(
    arrays: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: list[str]
) -> None:
    def compared(out: Path) -> ComparisonResult:
        torch.manual_seed(1)
        loss = ProxyAnchorLoss(CLASSES, 8)  # has its own weights, which are in the checkpoint
        return compare(arrays, ["triplet", loss], out=out, seeds=1, backbone=network(), **QUICK)

    whole = compared(tmp_path / "whole")
    save = Trainer._save_or_stop

    def stopping(self: Trainer, asked: bool) -> None:
        save(self, asked or (self.run.folder.name == "ProxyAnchorLoss-0" and self.position.step == 3))

    monkeypatch.setattr(Trainer, "_save_or_stop", stopping)
    with pytest.raises(Interrupted):
        compared(tmp_path / "cut")
    monkeypatch.setattr(Trainer, "_save_or_stop", save)
    del trained[:]
    assert compared(tmp_path / "cut").scores == whole.scores
    assert trained == []  # one was finished, the other was resumed


def test_other_objects_do_not_mix_with_what_is_there(arrays: tuple[Any, Any], tmp_path: Path) -> None:
    compare(arrays, ["triplet"], out=tmp_path / "out", seeds=1, backbone=network(), **QUICK)
    settings = (tmp_path / "out" / "settings.json").read_text()
    for other in ((arrays[0] + 1, arrays[1]), (arrays[0][:160], arrays[1][:160])):
        with pytest.raises(UserError, match="have changed since the run started"):
            compare(other, ["triplet", "softmax"], out=tmp_path / "out", seeds=1, backbone=network(), **QUICK)
    with pytest.raises(UserError, match="has runs of triplet with other settings"):
        compare(arrays, ["triplet"], out=tmp_path / "out", seeds=1, backbone=nn.Linear(6, 12), **QUICK)
    assert (tmp_path / "out" / "settings.json").read_text() == settings


def test_trials_are_of_the_same_objects(arrays: tuple[Any, Any], tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    found = compare(arrays, [MultiSimilarityLoss()], out=tmp_path / "out", seeds=1, tune=2, backbone=network(), **QUICK)
    assert set(found.chosen["MultiSimilarityLoss"]) == {"learning_rate"}
    assert len(list((tmp_path / "out" / "tune").glob("MultiSimilarityLoss-*"))) == 2


class Vector(nn.Module):
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG002
        return embeddings.sum(1)


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


class Locked(nn.Linear):
    def __init__(self) -> None:
        super().__init__(6, 12)
        self.lock = threading.Lock()


class Other(Triplet):
    """An unregistered method with the name of another one."""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"jobs": 2}, "cannot be parallel; use jobs=1"),
        ({"methods": [Vector()]}, r"returned a tensor of shape \(16,\); return a scalar"),
        ({"methods": ["softmax", Vector]}, r"a method must be a name, an object such as .*, got the class Vector"),
        ({"methods": ["loss"]}, r"nearkin\.compare\(data, \[MyLoss\(\)\]\)"),
        ({"methods": [LossModule()]}, r"nearkin\.compare\(data, \[MyLoss\(\)\]\)"),
        ({"methods": [Other()]}, "Other is not the registered method 'triplet'"),
        ({"methods": []}, "no method"),
        ({"backbone": Pair()}, "returned a tuple; return a tensor"),
        ({"backbone": Pair}, r"got the class Pair; pass an object, Pair\(...\)"),
        ({"backbone": Locked()}, "cannot be copied"),
        ({"data": (np.zeros((4, 2)), [0, 0, 1])}, "3 labels for 4 items"),
        ({"data": TensorDataset}, "TensorDataset is a class, not data"),
        ({"source": "glyphs"}, "data is given twice; leave out source"),
        ({"split": "all"}, "no test split"),
        ({"tune": -1}, "tune must be an integer >= 0, got -1"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    arrays: tuple[Any, Any], tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        compare(**{"data": arrays, "methods": ["triplet"], "out": tmp_path / "out", **QUICK, **given})
    assert not (tmp_path / "out").exists()


def test_a_comparison_of_objects_is_kept_under_the_name_of_the_data(
    arrays: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    compare(arrays, MultiSimilarityLoss(), seeds=1, **QUICK | {"epochs": 0})
    assert Run(tmp_path / "runs" / "compare-arrays" / "MultiSimilarityLoss-0").scores


@pytest.mark.parametrize(
    ("settings", "same"),
    [({}, False), ({"weights": "none"}, True), ({"weights": "file.pt"}, True), ({"init": "run"}, True)],
)
def test_weights_drawn_anew_are_another_backbone_only_where_training_starts_from_them(
    settings: dict[str, Any], same: bool
) -> None:
    def digest(backbone: nn.Module) -> dict[str, str]:
        objects = Objects(backbone=backbone)
        rows = rows_of("triplet", "<arrays>", {"backbone": "module:Linear", **settings}, "fair", objects)
        return backbone_digest(rows["triplet"])

    assert (digest(nn.Linear(6, 12)) == digest(nn.Linear(6, 12))) is same
    assert digest(nn.Linear(6, 12)) != digest(nn.Linear(6, 11))
