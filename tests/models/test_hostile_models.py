"""A model from a stranger is refused in one sentence: nothing waits, nothing is read outside of its folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from reference.hostile_folders import MODELS, at_once
from reference.untrained import save_untrained

from nearkin.errors import UserError
from nearkin.models import load_model


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_untrained(tmp_path_factory.mktemp("made") / "model")


@pytest.mark.parametrize("name", MODELS)
def test_a_strangers_model_is_refused_at_once(name: str, made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "model")
    victim = tmp_path / "victim.txt"
    victim.write_text("private")
    MODELS[name](tmp_path / "model", victim)
    with at_once(), pytest.raises(UserError) as refused:
        load_model(tmp_path / "model")
    said = str(refused.value)
    assert said.isprintable() and "private" not in said
    assert victim.read_text() == "private"
