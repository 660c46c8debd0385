"""The Python API: paths as strings or `Path`, user-defined objects, and messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_metric_learning.losses import ContrastiveLoss, MultiSimilarityLoss

import nearkin
from nearkin.api import _sample_items, embed, evaluate
from nearkin.data import as_dataset, load_dataset
from nearkin.errors import UserError
from nearkin.experiments import compare, reproduce
from nearkin.experiments.run_report import write_report
from nearkin.methods import Magnet, Triplet
from nearkin.training import Run, Settings, resume, train
from nearkin.training.run import MemoryRun

QUICK: dict[str, Any] = {"epochs": 0, "batch_size": 8, "dim": 4, "device": "cpu"}
Door = Callable[[Any, Any, Any], Any]  # data, a run's folder, a place for something new -> what came out


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "x.npz"
    labels = np.arange(32) // 4
    np.savez(file, vectors=np.random.default_rng(0).normal(size=(32, 4)), labels=labels)
    return file


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nearkin.train(data, out=tmp_path_factory.mktemp("runs") / "run", **QUICK).folder


def sought_in(root: str | Path) -> str:
    with pytest.raises(UserError) as refused:
        load_dataset("cub200", root)
    return str(refused.value)


DOORS: dict[str, Door] = {
    "load_dataset": lambda data, *_: len(load_dataset(data)),
    "root": lambda data, *_: sought_in(data),
    "train": lambda data, _, out: nearkin.train(data, out=out, **QUICK).scores,
    "load": lambda _, run, __: nearkin.load(run).encode(np.ones((1, 4))).tolist(),
    "Run": lambda _, run, __: Run(run).folder,
    "Run.open": lambda _, run, __: Run.open(run).folder,
    "Settings.read": lambda _, run, __: Settings.read(type(run)(Path(run) / "config.toml")),
    "training.train": lambda _, run, out: train(Run(run).settings(), out).scores,
    "resume": lambda _, run, __: resume(run).scores,
    "evaluate": lambda data, run, _: evaluate(run, data=data, root=data).scores,
    "embed": lambda data, run, out: embed(run, data, type(out)(f"{out}.npz"), root=data).tolist(),
    "write_report": lambda _, run, out: write_report(run, type(out)(f"{out}.html"), figures=False).stat().st_size > 0,
    "compare": lambda data, _, out: compare(data, ["triplet"], 1, "paper", out=out, per_class=2, **QUICK).scores,
    "reproduce": lambda _, __, out: (
        reproduce("rank", "table-1", out=out) and sorted(file.name for file in Path(out).iterdir())
    ),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_path_may_be_a_string(
    door: str, data: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEARKIN_DATA", str(tmp_path))  # no benchmarks: a table of them is written without training
    monkeypatch.chdir(tmp_path)
    outcomes = [DOORS[door](kind(data), kind(run), kind(tmp_path / kind.__name__)) for kind in (Path, str)]
    assert outcomes[0] == outcomes[1]


def arrays() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32), np.arange(32) // 4


TRAINED = QUICK | {"epochs": 2, "logger": "none"}


def test_callbacks_see_the_current_model_and_the_run_ends_with_the_last(tmp_path: Path) -> None:
    seen = []
    run = nearkin.train(
        arrays(),
        out=tmp_path / "run",
        keep="last",
        callbacks=[lambda run, _: seen.append(run.model.encode(np.ones(4)).tolist())],
        **TRAINED,
    )
    assert len(seen) == 2 and seen[0] != seen[1]
    assert run.model.encode(np.ones(4)).tolist() == seen[1] == nearkin.load(run.folder).encode(np.ones(4)).tolist()


def test_a_callback_that_uses_the_model_changes_nothing(tmp_path: Path) -> None:
    dataset = as_dataset(arrays())
    settings = nearkin.train(arrays(), out=tmp_path / "run", **TRAINED).settings()
    found = []
    for callback in (lambda *_: None, lambda run, _: run.model.encode(np.ones(4))):
        torch.manual_seed(0)
        found.append(
            train(settings, MemoryRun(), dataset=dataset, callbacks=[callback]).model.encode(np.ones(4)).tolist()
        )
    assert found[0] == found[1]


def test_a_run_has_the_module_that_it_was_trained_with(tmp_path: Path) -> None:
    backbone = torch.nn.Linear(4, 6)
    run = nearkin.train(arrays(), out=tmp_path / "run", backbone=backbone, **TRAINED)
    assert run.model.encode(np.ones(4)).shape == (4,) and run.model.model.backbone is not backbone
    with pytest.raises(UserError, match="your own module"):
        nearkin.load(run.folder)


def test_a_run_has_the_objects_that_it_was_trained_on(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    points, labels = rng.normal(size=(64, 4)).astype(np.float32), np.arange(64) // 4
    module = torch.nn.Linear(4, 6)
    run = nearkin.train((points, labels), out=tmp_path / "run", backbone=module, **QUICK | {"epochs": 1})
    result = evaluate(run)
    assert result.split == "test" and result.scores["recall@1"] == pytest.approx(run.scores["after"]["recall@1"])
    assert embed(run, (points, labels), tmp_path / "x.npz").shape == (64, 4)
    assert "data cannot be read" not in nearkin.report(run).read_text()
    samples = _sample_items(run)
    assert samples is not None and len(samples) == 10
    assert nearkin.resume(run, 2, backbone=module).scores["after"]
    with pytest.raises(
        UserError, match=r"trained on an object.*pass it again in Python, for instance nearkin\.evaluate"
    ):
        evaluate(run.folder, backbone=torch.nn.Linear(4, 6))


def test_a_refused_number_of_epochs_leaves_the_run_unchanged(tmp_path: Path) -> None:
    run = nearkin.train(arrays(), out=tmp_path / "run", **TRAINED)
    before = {file: file.read_bytes() for file in run.folder.rglob("*") if file.is_file()}
    with pytest.raises(UserError, match="already trained for 2 epochs"):
        nearkin.resume(run, epochs=2, data=arrays())
    assert {file: file.read_bytes() for file in run.folder.rglob("*") if file.is_file()} == before


def test_a_second_training_on_all_classes_calls_the_same_callbacks(tmp_path: Path) -> None:
    class Recorder:
        def __init__(self) -> None:
            self.folders: set[str] = set()

        def note(self, run: Run, _: dict[str, Any]) -> None:
            self.folders.add(run.folder.name)

    recorder = Recorder()
    settings = TRAINED | {"keep": "last"}
    nearkin.train(arrays(), out=tmp_path / "run", fit_all=True, callbacks=[recorder.note], **settings)
    assert recorder.folders == {"run", "run-all"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": Magnet(alpha=2.0), "alpha": 3.0}, "alpha.*Magnet"),
        ({"method": Magnet}, "method must be a name or a method object"),
        ({"method": 5}, "method must be a name or a method object"),
        ({"source": "glyphs"}, "source"),
    ],
)
def test_arguments_without_effect_are_refused(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        nearkin.train(arrays(), out=tmp_path / "run", **TRAINED, **given)
    assert not (tmp_path / "run").exists()


def test_labels_in_addition_to_a_space_are_refused() -> None:
    space = nearkin.Space.of(arrays()[0], arrays()[1])
    with pytest.raises(UserError, match="its own labels and masks"):
        nearkin.evaluate(space, arrays()[1])


def test_a_loss_is_resumed_with_its_batches_and_another_method_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loss = torch.nn.Module()
    loss.forward = lambda embeddings, _: embeddings.square().mean()  # type: ignore[method-assign]
    run = nearkin.train(arrays(), out=tmp_path / "run", loss=loss, per_class=2, **TRAINED)
    whole = nearkin.train(arrays(), out=tmp_path / "whole", loss=loss, per_class=2, **TRAINED | {"epochs": 3})
    with caplog.at_level("WARNING", "nearkin"):
        nearkin.resume(run, epochs=3, data=arrays(), loss=loss)
    steps = [[record["step"] for record in each.metrics if record["kind"] == "training"] for each in (run, whole)]
    assert steps[0] == steps[1] and "started with" not in caplog.text
    other = nearkin.train(arrays(), out=tmp_path / "other", method=Triplet(margin=0.3, per_class=2), **TRAINED)
    with pytest.raises(UserError, match="started with another"):
        nearkin.resume(other, data=arrays(), method=Triplet(margin=0.5, per_class=2))


def test_a_run_with_user_defined_objects_is_repeated_from_its_config(tmp_path: Path) -> None:
    def objects() -> dict[str, Any]:
        torch.manual_seed(0)
        backbone = torch.nn.Linear(4, 6)  # training changes it
        return {"data": arrays(), "backbone": backbone, "loss": MultiSimilarityLoss()}

    first = nearkin.train(**objects(), out=tmp_path / "first", per_class=2, **TRAINED)
    config = first.config_file
    assert "nearkin.train(config=..., data=..., backbone=..., loss=...)" in config.read_text()
    again = nearkin.train(**objects(), config=config, out=tmp_path / "again")
    losses = [[record.get("loss") for record in run.metrics] for run in (first, again)]
    assert losses[0] == losses[1] and again.settings() == first.settings()
    changed = nearkin.train(**objects(), config=config, out=tmp_path / "changed", per_class=4)
    assert changed.settings().method_settings["per_class"] == 4
    with pytest.raises(UserError, match=r"another method or loss \(loss_class was .*, got .*ContrastiveLoss\)"):
        nearkin.train(**objects() | {"loss": ContrastiveLoss()}, config=config, out=tmp_path / "refused")
    with pytest.raises(UserError, match="sets the method"):
        nearkin.train(arrays(), "rank", config=config, out=tmp_path / "refused")
    for missing in ("data", "backbone", "loss"):
        with pytest.raises(UserError, match=f"pass (it again|the same object).*{missing}="):
            nearkin.train(
                **{name: each for name, each in objects().items() if name != missing},
                config=config,
                out=tmp_path / "refused",
            )
    with pytest.raises(UserError, match="weights file own does not exist"):
        nearkin.train(**objects() | {"backbone": "mlp"}, config=config, out=tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


def test_a_config_that_names_a_method_takes_no_loss(tmp_path: Path) -> None:
    run = nearkin.train(arrays(), out=tmp_path / "run", **TRAINED)
    with pytest.raises(UserError, match="started with another method or loss"):
        nearkin.train(arrays(), config=run.config_file, loss=MultiSimilarityLoss(), out=tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
