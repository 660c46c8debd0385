"""The training options are the same for every command that trains."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest
import typer
from conftest import Command

from nearkin.cli import app
from nearkin.cli.options import TrainingOptions
from nearkin.training.settings import knows

NAMES = list(get_type_hints(TrainingOptions))


@pytest.mark.parametrize("name", NAMES)
def test_every_option_is_a_setting_and_the_same_for_train_and_compare(name: str) -> None:
    assert knows("rank", name)
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    train, compare = (next(each for each in commands[who].params if each.name == name) for who in ("train", "compare"))
    assert train.default is compare.default is None
    assert (train.opts, train.help) == (compare.opts, compare.help)


def test_compare_passes_on_the_given_options_and_no_others(nearkin: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        "nearkin.experiments.compare", lambda *given, **settings: asked.append((given, settings)), raising=False
    )
    options = ("--backbone", "linear", "--dim", "4", "--freeze-backbone", "--learning-rate", "1e-3")
    outcome = nearkin("compare", "glyphs", "--methods", "rank,triplet", *options, "--no-count-check", "--set", "dim=8")
    assert outcome.code == 0, outcome.err
    [((data, methods, *_), settings)] = asked
    assert (data, methods) == ("glyphs", "rank,triplet")
    given = {"backbone": "linear", "dim": 8, "freeze_backbone": True, "learning_rate": 1e-3, "check_counts": False}
    assert settings == given
