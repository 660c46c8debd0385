"""Hostile models are refused in one sentence: nothing blocks, and nothing outside the folder is read."""

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
def test_a_hostile_model_is_refused_at_once(name: str, made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "model")
    victim = tmp_path / "victim.txt"
    victim.write_text("private")
    MODELS[name](tmp_path / "model", victim)
    with at_once(), pytest.raises(UserError) as refused:
        load_model(tmp_path / "model")
    said = str(refused.value)
    assert said.isprintable() and "private" not in said
    assert victim.read_text() == "private"


def downloaded(made: Path, cache: Path) -> Path:
    """A model as huggingface_hub keeps it: a snapshot of links to the files themselves."""
    blobs, snapshot = cache / "models--me--birds" / "blobs", cache / "models--me--birds" / "snapshots" / "4f2a"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, file in enumerate(made.iterdir()):
        shutil.copy(file, blobs / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    return snapshot


def test_a_model_in_the_hubs_cache_is_read_through_its_links(made: Path, tmp_path: Path) -> None:
    assert load_model(downloaded(made, tmp_path)).dim == load_model(made).dim


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_links_that_lead_out_of_the_hubs_cache_are_not_followed(name: str, made: Path, tmp_path: Path) -> None:
    snapshot = downloaded(made, tmp_path)
    blob = (snapshot / name).resolve()
    blob.unlink()
    blob.symlink_to(made / name)
    with pytest.raises(UserError, match="link, which is not followed"):
        load_model(snapshot)
