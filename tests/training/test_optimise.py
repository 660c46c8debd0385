"""Learning rates, schedules, clipping and settings files do what they say."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from conftest import TINY_GLYPHS
from torch import nn

from nearkin.api import make_settings
from nearkin.errors import UserError
from nearkin.fields import parse_assignment
from nearkin.losses import ProxyNCALoss, SoftmaxLoss
from nearkin.methods import Phase
from nearkin.methods.rank import Rank
from nearkin.training import Run, Settings, TrainingSettings, loop
from nearkin.training.loop import make_trainer
from nearkin.training.optimise import make_optimizer, rate_factor, set_rates


def factors(steps: int = 20, **changes: float | str) -> list[float]:
    settings = TrainingSettings(**{"epochs": 4, "warmup_steps": 0, **changes})  # type: ignore[arg-type]
    return [rate_factor(step, 5, settings) for step in range(steps)]


def test_schedules_have_their_shapes() -> None:
    assert set(factors(schedule="constant")) == {1.0}
    assert factors(schedule="linear") == pytest.approx([1 - step / 20 for step in range(20)])
    assert factors(schedule="cosine") == pytest.approx([(1 + math.cos(math.pi * step / 20)) / 2 for step in range(20)])
    stepped = factors(schedule="step", decay_every=2, decay_factor=0.5)
    assert stepped == [1.0] * 10 + [0.5] * 10


def test_warm_up_rises_to_the_full_rate_and_then_hands_over() -> None:
    rising = factors(warmup_steps=4, schedule="constant")
    assert rising[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert max(factors(warmup_steps=4, schedule="cosine")[4:]) == 1.0


@pytest.mark.parametrize("schedule", ["constant", "cosine", "linear", "step"])
def test_every_phase_of_a_method_has_the_whole_schedule(schedule: str) -> None:
    def course(epochs: int, phases: tuple[Phase, ...] = (Phase(0),), warmup: int = 0) -> list[float]:
        settings = TrainingSettings(epochs=epochs, schedule=schedule, decay_every=1, warmup_steps=warmup)
        return [rate_factor(step, 5, settings, phases) for step in range(5 * epochs)]

    found = course(7, (Phase(0), Phase(4, rate_factor=0.5)), warmup=3)
    assert found == pytest.approx(course(4, warmup=3) + [0.5 * factor for factor in course(3)])


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "rmsprop"])
def test_each_part_learns_at_its_own_rate(name: str) -> None:
    parts = {"backbone": (nn.Linear(2, 2), 0.1), "head": (nn.Linear(2, 2), 1.0), "loss": (nn.ReLU(), 5.0)}
    optimizer = make_optimizer(parts, TrainingSettings(optimizer=name))
    set_rates(optimizer, 0.5)
    assert [(group["name"], group["lr"]) for group in optimizer.param_groups] == [("backbone", 0.05), ("head", 0.5)]


def test_momentum_and_weight_decay_reach_the_optimizer() -> None:
    settings = TrainingSettings(optimizer="sgd", momentum=0.7, weight_decay=0.3)
    (group,) = make_optimizer({"head": (nn.Linear(1, 1), 1.0)}, settings).param_groups
    assert (group["momentum"], group["weight_decay"]) == (0.7, 0.3)


def test_gradients_are_clipped_to_the_norm_that_was_asked_for(tmp_path: Path) -> None:
    changes = {"epochs": 1, "batch_size": 16, "per_class": 4, "clip_norm": 1e-3, "evaluate_every": 0}
    trainer = make_trainer(make_settings(TINY_GLYPHS, "rank", changes), Run(tmp_path / "run"))
    norms: list[float] = []
    trainer.optimizer.register_step_post_hook(
        lambda *_: norms.append(
            torch.cat([p.grad.flatten() for p in trainer.learner.parameters() if p.grad is not None]).norm().item()
        )
    )
    trainer.train()
    assert len(norms) == 3
    assert all(norm <= 1.01e-3 for norm in norms)


def test_curves_go_to_tensorboard_too(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = loop.train(
        make_settings(TINY_GLYPHS, "rank", {"epochs": 2, "batch_size": 16, "per_class": 4}), tmp_path / "r"
    )
    events = EventAccumulator(str(run.folder / "tensorboard"))
    events.Reload()
    logged = [record["loss"] for record in run.metrics if record["kind"] == "training"]
    assert [event.value for event in events.Scalars("training/loss")] == pytest.approx(logged)
    assert events.Scalars("test/map@r")


def test_settings_survive_the_way_through_toml(tmp_path: Path) -> None:
    settings = make_settings(
        'odd "path" with ünicode\\', "rank", {"learning_rate": 1e-5, "alpha": 2, "validation": 0.1}
    )
    (tmp_path / "c.toml").write_text(settings.to_toml(), encoding="utf-8")
    assert Settings.read(tmp_path / "c.toml").to_tables() == settings.to_tables()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[data]\nsource='x'\n[trainig]\n", "did you mean 'training'"),
        ("[data]\nsource='x'\n[training]\nepoch=1", "did you mean 'epochs'"),
        ("[data]\nsource='x'\n[training]\nepochs='many'", "epochs must be an integer, got 'many'"),
        ("[data]\nsource='x'\n[training]\nepochs=true", "epochs must be an integer"),
        ("[data]\nsource='x'\n[training]\nclip_norm=inf", "must be a finite number"),
        ("[training]\n", "data.source is missing"),
        ("training = 3\n", "must be a table"),
        ("[data\n", "not valid TOML"),
    ],
)
def test_each_mistake_in_a_settings_file_is_named(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(UserError, match=expected):
        Settings.read(tmp_path / "c.toml")


def test_assignments_are_values_where_they_can_be() -> None:
    values = ["a=1", "a=1e-3", "a=true", "a=text", "a='quoted'", "a="]
    assert [parse_assignment(value)[1] for value in values] == [1, 0.001, True, "text", "quoted", ""]


@pytest.mark.parametrize("kind", [ProxyNCALoss, SoftmaxLoss])
def test_what_a_loss_learns_is_learnt_at_its_own_rate(
    kind: type[nn.Module], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Rank, "prepare", lambda self, classes, dim, _: setattr(self, "loss", kind(classes, dim)))
    changes = {"epochs": 1, "batch_size": 16, "per_class": 4, "evaluate_every": 0, "loss_learning_rate": 0.07}
    trainer = make_trainer(make_settings(TINY_GLYPHS, "rank", changes), Run(tmp_path / "run"))
    (group,) = [group for group in trainer.optimizer.param_groups if group["name"] == "loss"]
    learnt = list(trainer.method.loss.parameters())
    assert group["rate"] == 0.07
    assert {id(parameter) for parameter in group["params"]} == {id(parameter) for parameter in learnt}
    before = [parameter.detach().clone() for parameter in learnt]
    trainer.train()
    assert all(not torch.equal(old, new) for old, new in zip(before, learnt, strict=True))


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_the_device_decides_whether_to_fuse_and_not_the_checkpoint(name: str) -> None:
    optimizer = make_optimizer({"head": (nn.Linear(1, 1), 1.0)}, TrainingSettings(optimizer=name))
    saved = optimizer.state_dict()
    saved["param_groups"][0] |= {"fused": True, "lr": 0.5}
    optimizer.load_state_dict(saved)
    assert [(group["fused"], group["lr"]) for group in optimizer.param_groups] == [(False, 0.5)]
