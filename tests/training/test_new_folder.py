"""The default folder of a run: the first free one, claimed by creating it."""

from __future__ import annotations

from pathlib import Path

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
