"""The folder of a run: by default the first free one, claimed by creating it; what cannot work is said at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import nearkin
from nearkin.errors import Interrupted, UserError
from nearkin.training import Run, loop
from nearkin.training.run import NewRun
from nearkin.training.settings import make_settings


def test_two_runs_that_begin_at_the_same_moment_get_two_folders(tmp_path: Path) -> None:
    one, two = (NewRun(tmp_path / "runs" / "photos-rank") for _ in range(2))
    for run in (one, two):
        run.check_free()
    assert not (tmp_path / "runs").exists()  # errors before this point leave nothing behind
    for run in (one, two):
        run.create(make_settings("glyphs", "rank", {}), "digest")
    assert [run.folder.name for run in (one, two)] == ["photos-rank", "photos-rank-2"]
    assert two.settings().method == "rank" and two.model_folder == tmp_path / "runs" / "photos-rank-2" / "model"


@pytest.fixture
def no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the data would take minutes."""

    def read(*_: object) -> None:
        raise AssertionError("the data are read")

    monkeypatch.setattr(loop, "load_splits", read)


@pytest.mark.usefixtures("no_data")
@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"out": "{folder}/file/run"}, "could not write {folder}/file/run: {folder}/file is not a folder"),
        ({"out": None}, "could not write runs: "),
        ({"out": "{folder}/file"}, "could not write {folder}/file: {folder}/file is not a folder"),
        ({"backbone": "resnet5"}, "backbone 'resnet5' is unknown; did you mean"),
        ({"weights": "nothere.safetensors"}, "weights file nothere.safetensors does not exist"),
    ],
)
def test_what_needs_no_data_is_checked_before_they_are_read(
    tmp_path: Path, wrong: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "runs").touch()
    named = {name: value and value.format(folder=tmp_path) for name, value in wrong.items()}
    given: dict[str, Any] = {"out": tmp_path / "run"} | named
    with pytest.raises(UserError) as refused:
        nearkin.train("glyphs", **given)
    assert str(refused.value).startswith(expected.format(folder=tmp_path))


def test_a_stop_before_the_first_step_names_no_other_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    NewRun(tmp_path / "run").create(make_settings("glyphs", "rank", {}), "digest")  # an earlier one
    monkeypatch.setattr(loop, "load_splits", stop)
    with pytest.raises(Interrupted, match=r"^stopped before the first step; run it again$"):
        loop.train(make_settings("glyphs", "rank", {}), NewRun(tmp_path / "run"))


def test_a_run_that_does_not_exist_is_not_called_damaged(tmp_path: Path) -> None:
    for read in (nearkin.load, nearkin.resume, Run.open):
        with pytest.raises(UserError, match=f"^{tmp_path}/x does not exist; use a run folder"):
            read(tmp_path / "x")
