"""Tuning: the same number of trials per method, the test split unseen, trials are reused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from nearkin.errors import Interrupted, UserError
from nearkin.experiments import compare
from nearkin.training import Run, loop
from nearkin.training.loop import Trainer

QUICK: dict[str, Any] = {"epochs": 2, "batch_size": 16, "dim": 8, "backbone": "linear", "device": "cpu"}


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the runs that were started."""
    names: list[str] = []
    original = loop.train

    def noting(settings: Any, folder: Path, tested: bool, **objects: Any) -> Any:
        names.append(f"{folder.parent.name}/{folder.name}")
        return original(settings, folder, tested, **objects)

    monkeypatch.setattr("nearkin.experiments.runs.train", noting)
    return names


def trials(out: Path) -> Any:
    return json.loads((out / "tune" / "trials.json").read_text())


def test_the_best_trial_on_validation_is_used_for_all_seeds(vectors: str, tmp_path: Path, trained: list[str]) -> None:
    out = tmp_path / "out"
    found = compare(vectors, ["triplet", "softmax"], out=out, seeds=2, **QUICK, tune=3)
    assert [name for name in trained if name.startswith("tune")] == [
        f"tune/{method}-{number}" for method in ("triplet", "softmax") for number in range(3)
    ]
    first = trials(out)["triplet"][0]
    assert first["settings"] == {"learning_rate": 3e-4, "margin": 0.2, "per_class": 4}  # the defaults
    for method, tried in trials(out).items():
        for number, trial in enumerate(tried):
            records = Run(out / "tune" / f"{method}-{number}").metrics
            assert trial["score"] == max(record["map@r"] for record in records if record["kind"] == "evaluation")
        best = max(tried, key=lambda trial: trial["score"])
        assert json.loads((out / "chosen.json").read_text())[method] == best
        assert found.chosen[method] == best["settings"]
        for seed in range(2):
            tables = Run(out / f"{method}-{seed}").settings().to_tables()
            used = tables["training"] | tables["method"]
            assert {name: used[name] for name in best["settings"]} == best["settings"]
    assert "3 trials" in found.legend


def test_trials_never_see_the_test_split(vectors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure, measured = Trainer._measure, set()

    def noting(self: Trainer, split: str, kind: str, start: Any = None) -> dict[str, float]:
        if self.run.folder.parent.name == "tune" and self.held_out[split] is not None:
            measured.add(split)
        return measure(self, split, kind, start)

    monkeypatch.setattr(Trainer, "_measure", noting)
    compare(vectors, ["triplet"], out=tmp_path / "out", seeds=1, **QUICK, tune=2)
    assert measured == {"validation"}
    for number in range(2):
        run = Run(tmp_path / "out" / "tune" / f"triplet-{number}")
        assert json.loads(run.scores_file.read_text())["after"] == {}
        assert {record.get("split") for record in run.metrics} == {None, "validation"}


def test_a_stopped_search_goes_on_to_the_same_trials(
    vectors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: list[str]
) -> None:
    """Beyond the random trials, where the next trial depends on all earlier scores."""
    quick = QUICK | {"epochs": 1}
    whole = compare(vectors, ["triplet"], out=tmp_path / "whole", seeds=1, **quick, tune=9)
    save = Trainer._save_or_stop
    monkeypatch.setattr(
        Trainer,
        "_save_or_stop",
        lambda self, asked: save(self, asked or (self.run.folder.name == "triplet-7" and self.position.step == 2)),
    )
    with pytest.raises(Interrupted, match="run the same command to continue"):
        compare(vectors, ["triplet"], out=tmp_path / "cut", seeds=1, **quick, tune=9)
    monkeypatch.setattr(Trainer, "_save_or_stop", save)
    trained.clear()
    assert compare(vectors, ["triplet"], out=tmp_path / "cut", seeds=1, **quick, tune=9).scores == whole.scores
    assert trained == ["tune/triplet-8", "cut/triplet-0"]  # the seventh was resumed
    assert trials(tmp_path / "cut") == trials(tmp_path / "whole")


def test_a_trial_that_fails_counts_as_the_worst(vectors: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    out = tmp_path / "out"
    found = compare(vectors, ["divide-and-conquer", "spectral"], out=out, seeds=1, **(QUICK | {"dim": 18}), tune=4)
    assert "always 0" in found.refused["spectral"] and not (out / "spectral-0").exists()
    tried = trials(out)["divide-and-conquer"]
    assert any(trial["refused"] and trial["score"] == 0 for trial in tried)  # 18 is not a multiple of 4 or 8
    assert found.chosen["divide-and-conquer"]["learners"] == 2
    assert "counts as 0: " in caplog.text


def test_what_was_given_is_not_searched(vectors: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    compare(vectors, ["triplet"], out=out, seeds=1, **(QUICK | {"margin": 0.7, "learning_rate": 1e-2}), tune=3)
    for trial in trials(out)["triplet"]:
        assert set(trial["settings"]) == {"learning_rate", "per_class"}
        assert 2e-3 <= trial["settings"]["learning_rate"] <= 5e-2


def test_tuned_and_untuned_runs_do_not_mix(vectors: str, tmp_path: Path) -> None:
    for tune in (0, 2):
        out = tmp_path / str(tune)
        compare(vectors, ["triplet"], out=out, seeds=1, **QUICK, tune=tune)
        with pytest.raises(UserError, match="has runs of triplet with other settings"):
            compare(vectors, ["triplet"], out=out, seeds=1, **QUICK, tune=2 - tune)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"tune": 2, "protocol": "paper"}, 'use protocol="fair"'),
        ({"concatenate": True, "protocol": "paper"}, 'use protocol="fair"'),
        ({"tune": -1}, "tune must be an integer >= 0, got -1"),
        ({"tune": 2, "epochs": 0}, "among untrained models"),
        ({"concatenate": True, "seeds": 1}, "seeds=2 or more"),
        ({"jobs": 0}, "jobs must be an integer >= 1, got 0"),
    ],
)
def test_what_cannot_be_meant_is_refused(vectors: str, tmp_path: Path, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        compare(vectors, ["triplet"], out=tmp_path / "out", **(QUICK | options))
    assert not (tmp_path / "out").exists()


def test_a_search_without_optuna_says_what_to_install(
    vectors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"pip install 'nearkin\[tune\]'"):
        compare(vectors, ["triplet"], out=tmp_path / "out", **QUICK, tune=1)
    compare(vectors, ["triplet"], out=tmp_path / "out", seeds=1, **QUICK)  # nothing else needs it
