"""A user's own file with a loss, method, metric and backbone, from the command line and from Python."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from conftest import TINY_GLYPHS, Command

import nearkin as package
from nearkin.errors import UserError
from nearkin.plugins import import_as_parent, import_files

MINE = '''
from dataclasses import dataclass

from torch import nn

from nearkin.evaluation import metric
from nearkin.losses import make_loss, register_loss
from nearkin.methods import register
from nearkin.methods.base import GroupedMethod
from nearkin.models import register_backbone
from nearkin.data.transforms import Preprocess


@register_loss("shrink")
class Shrink(nn.Module):
    """Makes everything small."""

    def forward(self, embeddings, labels):
        return embeddings.square().mean()


@register
@dataclass
class ShrinkMethod(GroupedMethod):
    """Trains with it."""

    name = "shrink"
    paper = "nobody's"
    minimises = "lengths"
    per_class: int = 4

    def prepare(self, classes, dim, epochs):
        self.loss = make_loss("shrink")


@metric("share_of_ones", "Ones", "always one", higher_is_better=True, needs="space")
def share_of_ones(space):
    return 1.0


@register_backbone("average", Preprocess(size=16, resize=16, channels=1, mean=(0.5,), std=(0.5,)), grey=True)
def average(channels):
    return nn.Sequential(nn.AvgPool2d(4), nn.Flatten())
'''
QUICK = ["--epochs", "1", "--batch-size", "16", "--dim", "8", "--set", "workers=0", "--logger", "none"]


@pytest.fixture
def mine(tmp_path: Path, own_registries: None) -> Path:  # noqa: ARG001
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    return file


def test_a_users_own_file_with_the_commands(nearkin: Command, mine: Path, tmp_path: Path) -> None:
    trained = nearkin(
        *("--import", mine, "train", TINY_GLYPHS, "--method", "shrink", "--backbone", "average", *QUICK), "--out", "run"
    )
    assert trained.code == 0, trained.err
    measured = nearkin("--import", mine, "evaluate", "run", "--out", "scores.json")
    assert measured.code == 0 and "Ones" in measured.out
    assert json.loads((tmp_path / "scores.json").read_text())["test"]["share_of_ones"] == 1
    assert "shrink" in nearkin("--import", mine, "methods").out
    compared = nearkin(
        *("--import", mine, "compare", TINY_GLYPHS, "--methods", "shrink,rank", "--jobs", "2", "--seeds", "1", *QUICK),
        *("--backbone", "average", "--out", "both"),
    )
    assert compared.code == 0, compared.err


def test_a_users_own_file_in_python(mine: Path, tmp_path: Path) -> None:
    import_files([mine])
    run = package.train(
        TINY_GLYPHS, "shrink", tmp_path / "run", epochs=1, batch_size=16, dim=8, workers=0, logger="none", device="cpu"
    )
    assert package.evaluate(run).scores["share_of_ones"] == 1
    assert run.settings().method == "shrink"


@pytest.mark.parametrize(("text", "message"), [(None, "is not a Python file"), ("1 / 0", "ZeroDivisionError")])
def test_a_file_that_cannot_be_imported_is_one_sentence(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "wrong.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UserError, match=message):
        import_files([file])


def test_worker_processes_import_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARKIN_IMPORT", "")
    files = [tmp_path / "one.py", tmp_path / "two.py"]
    for file in files:
        file.write_text("")
        import_files([file])
    import_as_parent()
    assert os.environ["NEARKIN_IMPORT"] == os.pathsep.join(map(str, files))
