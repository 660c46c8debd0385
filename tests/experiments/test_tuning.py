"""Tuning: the same trials and epochs for every method, the test split unseen, trials continue and are reused."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from conftest import vectors_in

import nearkin
from nearkin.errors import Interrupted, UserError
from nearkin.experiments import ComparisonResult, compare, comparison, tuning
from nearkin.experiments.tuning import Rung, Trial, best, plan
from nearkin.files import write_json
from nearkin.methods import DivideAndConquer, Margin
from nearkin.training import Run, loop
from nearkin.training.loop import Trainer
from nearkin.training.settings import TrainingSettings

QUICK: dict[str, Any] = {"epochs": 2, "batch_size": 16, "dim": 8, "backbone": "linear", "device": "cpu"}
STEPS = 4  # in an epoch


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The number of steps trained in each run, by its folder and name."""
    return counted_steps(monkeypatch)


def counted_steps(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    taken, step = Counter[str](), Trainer._step

    def counting(self: Trainer, batch: Any) -> None:
        taken[f"{self.run.folder.parent.name}/{self.run.folder.name}"] += 1
        step(self, batch)

    monkeypatch.setattr(Trainer, "_step", counting)
    return taken


def trials(out: Path) -> Any:
    return json.loads((out / "tune" / "trials.json").read_text())


@dataclass(frozen=True)
class Tuned:
    """A comparison of triplet and softmax: five trials of nine epochs each, then two seeds."""

    out: Path
    data: str
    result: ComparisonResult
    steps: Counter[str]
    measured: set[str]  # splits that trials evaluated


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tuned]:
    folder = tmp_path_factory.mktemp("tuned")
    with pytest.MonkeyPatch.context() as patch:
        measure, measured = Trainer._measure, set[str]()

        def noting(self: Trainer, split: str, kind: str, start: Any = None) -> dict[str, float]:
            if self.run.folder.parent.name == "tune" and self.held_out[split] is not None:
                measured.add(split)
            return measure(self, split, kind, start)

        patch.setattr(Trainer, "_measure", noting)
        steps, data, out = counted_steps(patch), vectors_in(folder), folder / "out"
        found = compare(data, ["triplet", "softmax"], out=out, seeds=2, **(QUICK | {"epochs": 9}), tune=5)
    yield Tuned(out, data, found, steps, measured)


@pytest.mark.parametrize(
    ("trials", "training", "rungs"),
    [
        (9, {"epochs": 30}, [(9, 4), (4, 10), (2, 30)]),
        (20, {"epochs": 100}, [(20, 15), (8, 35), (4, 100)]),  # evaluated every five epochs
        (5, {"epochs": 30, "stop_after": 9}, [(5, 1), (3, 3), (2, 9)]),
        (5, {"epochs": 30, "evaluate_every": 40}, [(5, 30)]),
        (5, {"epochs": 1}, [(5, 1)]),
        (3, {"epochs": 9}, [(3, 1), (2, 9)]),
        (1, {"epochs": 9}, [(1, 9)]),
    ],
)
def test_a_third_of_the_trials_and_the_defaults_go_on_after_each_rung(
    trials: int, training: dict[str, int], rungs: list[tuple[int, int]]
) -> None:
    assert plan(trials, TrainingSettings(**training)) == [Rung(*rung) for rung in rungs]


def test_all_methods_train_the_epochs_of_the_plan_and_go_on_from_checkpoints(tuned: Tuned) -> None:
    budget = 5 * 1 + 3 * (3 - 1) + 2 * (9 - 3)
    for method, tried in trials(tuned.out).items():
        taken = sorted(tuned.steps[f"tune/{method}-{number}"] / STEPS for number in range(5))
        assert taken == [1, 1, 3, 9, 9] and sum(taken) == budget
        assert sorted(len(trial["scores"]) for trial in tried) == [1, 1, 2, 3, 3]
        defaults, *others = tried
        assert len(defaults["scores"]) == 3
        first = sorted((trial["scores"][0] for trial in others), reverse=True)
        assert first[:2] == sorted((trial["scores"][0] for trial in others if trial["scores"][1:]), reverse=True)
    assert tuned.result.tuning_epochs == budget
    assert f"5 trials, {budget} epochs in all" in tuned.result.legend


def test_the_best_trial_on_validation_is_used_for_all_seeds(tuned: Tuned) -> None:
    first = trials(tuned.out)["triplet"][0]
    assert first["settings"] == {"learning_rate": 3e-4, "margin": 0.2, "per_class": 4}  # the defaults
    for method, tried in trials(tuned.out).items():
        for number, trial in enumerate(tried):
            records = Run(tuned.out / "tune" / f"{method}-{number}").metrics
            assert trial["scores"][-1] == max(record["map@r"] for record in records if record["kind"] == "evaluation")
        best = max((trial for trial in tried if len(trial["scores"]) == 3), key=lambda trial: trial["scores"][-1])
        assert json.loads((tuned.out / "chosen.json").read_text())[method] == best
        assert tuned.result.chosen[method] == best["settings"]
        for seed in range(2):
            tables = Run(tuned.out / f"{method}-{seed}").settings().to_tables()
            used = tables["training"] | tables["method"]
            assert {name: used[name] for name in best["settings"]} == best["settings"]


def test_the_winner_is_not_trained_again_and_is_what_training_would_have_made(tuned: Tuned, tmp_path: Path) -> None:
    assert {name: count for name, count in tuned.steps.items() if name.startswith("out/")} == {
        "out/triplet-1": 9 * STEPS,
        "out/softmax-1": 9 * STEPS,
    }
    run = Run(tuned.out / "triplet-0")
    again = loop.train(run.settings(), tmp_path / "again")
    timed = ("items_per_second", "refresh_share")
    metrics, expected = (
        [{k: v for k, v in each.items() if k not in timed} for each in r.metrics] for r in (run, again)
    )
    assert metrics == expected and run.scores == again.scores
    states = (torch.load(each.checkpoint_file, weights_only=True) for each in (run, again))
    torch.testing.assert_close(*(state["learner"] for state in states), rtol=0, atol=0)


def test_trials_never_see_the_test_split(tuned: Tuned) -> None:
    assert tuned.measured == {"validation"}
    for number in range(5):
        run = Run(tuned.out / "tune" / f"triplet-{number}")
        assert json.loads(run.scores_file.read_text())["after"] == {}
        assert {record.get("split") for record in run.metrics} == {None, "validation"}


def test_a_stopped_search_goes_on_to_the_same_trials(
    vectors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: Counter[str]
) -> None:
    """Stopped beyond the random trials, where the next trial depends on all earlier scores, and in the second rung."""
    quick, save = QUICK | {"epochs": 3}, Trainer._save_or_stop
    whole = compare(vectors, ["triplet"], out=tmp_path / "whole", seeds=1, **quick, tune=8)
    assert sum(steps.values()) == (8 * 1 + 4 * 2) * STEPS
    steps.clear()
    last = max(number for number, trial in enumerate(trials(tmp_path / "whole")["triplet"]) if trial["scores"][1:])
    for trial, at in ((7, 2), (last, STEPS + 2)):
        monkeypatch.setattr(
            Trainer,
            "_save_or_stop",
            lambda self, asked, trial=trial, at=at: save(
                self, asked or (self.run.folder.name == f"triplet-{trial}" and self.position.step == at)
            ),
        )
        with pytest.raises(Interrupted, match="run the same command to continue"):
            compare(vectors, ["triplet"], out=tmp_path / "cut", seeds=1, **quick, tune=8)
    monkeypatch.setattr(Trainer, "_save_or_stop", save)
    with monkeypatch.context() as patch, pytest.raises(Interrupted):  # before the winner has been taken over
        patch.setattr(Trainer, "_take_over", Mock(side_effect=KeyboardInterrupt))
        compare(vectors, ["triplet"], out=tmp_path / "cut", seeds=1, **quick, tune=8)
    assert compare(vectors, ["triplet"], out=tmp_path / "cut", seeds=1, **quick, tune=8).scores == whole.scores
    assert trials(tmp_path / "cut") == trials(tmp_path / "whole")
    assert sum(steps.values()) == (8 * 1 + 4 * 2) * STEPS  # no step was taken twice


def test_trials_are_not_added_if_all_would_stop_at_other_epochs(
    vectors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores are kept by rung: the second rung of three trials is the third of five."""
    out, options = tmp_path / "out", QUICK | {"epochs": 9}
    with monkeypatch.context() as patch, pytest.raises(Interrupted):  # after tuning, before the runs
        patch.setattr(comparison, "_trained", Mock(side_effect=Interrupted))
        compare(vectors, ["triplet"], out=out, seeds=1, **options, tune=3)
    with pytest.raises(UserError, match="has trials of triplet, which would stay unused; use tune=3, or another"):
        compare(vectors, ["triplet"], out=out, seeds=1, **options)
    with pytest.raises(UserError, match="after 1, 9 epochs; with tune=5, they would stop after 1, 3, 9; use"):
        compare(vectors, ["triplet"], out=out, seeds=1, **options, tune=5)
    compare(vectors, ["triplet"], out=out, seeds=1, **options, tune=3)


def test_a_finished_first_rung_is_not_proposed_again(
    vectors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So seeds can be added with another version of Optuna."""
    out, options = tmp_path / "out", QUICK | {"epochs": 3, "tune": 3}
    first = compare(vectors, ["triplet"], out=out, seeds=1, **options)
    monkeypatch.setattr(tuning, "study_of", Mock(side_effect=AssertionError("proposed again")))
    second = compare(vectors, ["triplet"], out=out, seeds=2, **options)
    assert second.chosen == first.chosen and second.scores["triplet"]["map@r"][:1] == first.scores["triplet"]["map@r"]
    with pytest.raises(AssertionError, match="proposed again"):
        compare(vectors, ["triplet"], out=out, seeds=2, **options, margin=0.2)  # given, so it is not searched


def test_a_trial_that_fails_after_its_first_rung_leaves_its_place_empty() -> None:
    rungs = [Rung(3, 1), Rung(2, 3), Rung(1, 9)]
    tried = [Trial({}, (0.2,)), Trial({}, (0.4, 0.5), "the loss became nan"), Trial({}, (0.3, 0.3))]
    assert best(tried, rungs) == 2
    assert best([tried[0], tried[1], replace(tried[2], refused="the loss became nan")], rungs) == 0
    assert best([Trial({}, (), "always 0")], [Rung(1, 9)]) is None


def test_trials_of_an_older_version_are_refused(vectors: str, tmp_path: Path) -> None:
    write_json(
        tmp_path / "out" / "tune" / "trials.json", {"triplet": [{"settings": {}, "score": 0.1, "refused": None}]}
    )
    with pytest.raises(UserError, match="another version of nearkin; use another folder"):
        compare(vectors, ["triplet"], out=tmp_path / "out", seeds=1, **QUICK, tune=2)


def test_a_trial_that_fails_counts_as_the_worst(vectors: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    out = tmp_path / "out"
    found = compare(vectors, ["divide-and-conquer", "spectral"], out=out, seeds=1, **(QUICK | {"dim": 18}), tune=4)
    assert "always 0" in found.refused["spectral"] and not (out / "spectral-0").exists()
    tried = trials(out)["divide-and-conquer"]
    assert any(trial["refused"] and not trial["scores"] for trial in tried)  # 18 is not a multiple of 4 or 8
    assert found.chosen["divide-and-conquer"]["learners"] == 2
    assert "counts as 0: " in caplog.text


def test_tuning_for_a_paper_holds_classes_out_but_the_runs_do_not(vectors: str, tmp_path: Path) -> None:
    out, options = tmp_path / "out", QUICK | {"epochs": 3}
    fair = compare(vectors, ["triplet"], out=tmp_path / "fair", seeds=1, **options, tune=3)
    paper = compare(vectors, ["triplet"], out=out, seeds=2, protocol="paper", **options, tune=3)
    assert trials(out) == trials(tmp_path / "fair") and paper.chosen == fair.chosen
    assert all(Run(out / "tune" / f"triplet-{number}").settings().data.validation == 0.25 for number in range(3))
    for seed in range(2):
        run = Run(out / f"triplet-{seed}")
        tables = run.settings().to_tables()
        assert (tables["training"] | tables["method"]).items() >= paper.chosen["triplet"].items()
        assert run.settings().data.validation == 0 and run.settings().training.keep == "best-on-test"
        assert {record["split"] for record in run.evaluations()} == {"test"}
    for number in range(3):  # only their scores are needed
        shutil.rmtree(out / "tune" / f"triplet-{number}")
    assert compare(vectors, ["triplet"], out=out, seeds=2, protocol="paper", **options, tune=3).scores == paper.scores


def test_what_was_given_is_not_searched(vectors: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    compare(vectors, ["triplet"], out=out, seeds=1, **(QUICK | {"margin": 0.7, "learning_rate": 1e-2}), tune=3)
    for trial in trials(out)["triplet"]:
        assert set(trial["settings"]) == {"learning_rate", "per_class"}
        assert 2e-3 <= trial["settings"]["learning_rate"] <= 5e-2


def test_tuned_and_untuned_runs_do_not_mix(vectors: str, tmp_path: Path) -> None:
    for tune, how in ((0, "without tuning"), (2, "tuned with 2 trials")):
        out = tmp_path / str(tune)
        compare(vectors, ["triplet"], out=out, seeds=1, **QUICK, tune=tune)
        with pytest.raises(UserError, match=f"has runs of triplet {how}, .*; use tune={tune}, or another folder"):
            compare(vectors, ["triplet"], out=out, seeds=1, **QUICK, tune=2 - tune)


def test_a_search_whose_weights_are_missing_goes_on_once_they_are_there(vectors: str, tmp_path: Path) -> None:
    weights = tmp_path / "later.safetensors"
    options = QUICK | {"backbone": "mlp", "weights": str(weights), "tune": 2, "seeds": 1}
    with pytest.raises(UserError, match=r"later\.safetensors does not exist"):
        compare(vectors, ["triplet"], out=tmp_path / "out", **options)
    nearkin.train(vectors, out=tmp_path / "run", **(QUICK | {"backbone": "mlp", "epochs": 0}))
    shutil.copy(tmp_path / "run" / "model" / "model.safetensors", weights)
    assert set(compare(vectors, ["triplet"], out=tmp_path / "out", **options).scores) == {"triplet"}
    assert [trial["refused"] for trial in trials(tmp_path / "out")["triplet"]] == [None, None]


def test_a_row_with_impossible_settings_is_left_out_of_a_search(vectors: str, tmp_path: Path) -> None:
    options = {"tune": 2} | QUICK | {"batch_size": 0}  # the default cannot be found for this row
    found = compare(vectors, ["rank:per_class=200", "triplet"], out=tmp_path, seeds=1, **options)
    assert set(found.scores) == {"triplet"} and "200 items of a class" in found.refused["rank,per_class=200"]


def test_a_stopped_trial_does_not_go_on_with_settings_of_another_sampler(
    vectors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as that of another version of Optuna."""
    save, study_of = Trainer._save_or_stop, tuning.study_of

    def stopping(self: Trainer, asked: bool) -> None:
        save(self, asked or (self.run.folder.name == "triplet-1" and self.position.step == 2))

    def seeded_differently(row: Any) -> Any:
        return study_of(row.changed({"seed": 7}))

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(Trainer, "_save_or_stop", stopping)
        compare(vectors, ["triplet"], out=tmp_path, seeds=1, **QUICK, tune=3)
    monkeypatch.setattr(tuning, "study_of", seeded_differently)
    with pytest.raises(UserError, match="triplet-1 was tuned with other settings, or another version of Optuna"):
        compare(vectors, ["triplet"], out=tmp_path, seeds=1, **QUICK, tune=3)


def test_trials_of_other_data_or_with_other_epochs_do_not_go_on(
    vectors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(Interrupted):  # after tuning, before the runs
        patch.setattr(comparison, "_trained", Mock(side_effect=Interrupted))
        compare(vectors, ["triplet"], out=tmp_path, seeds=1, **QUICK, tune=2)
    shutil.copytree(tmp_path / "tune", tmp_path / "as-it-was")
    nearkin.resume(tmp_path / "tune" / "triplet-0", epochs=4)
    with pytest.raises(UserError, match="tune/triplet-0 was trained for 4 epochs instead of 2; delete it, or"):
        compare(vectors, ["triplet"], out=tmp_path, seeds=1, **QUICK, tune=2)
    shutil.rmtree(tmp_path / "tune")
    (tmp_path / "as-it-was").rename(tmp_path / "tune")
    with np.load(vectors) as data:
        fewer = {name: column[:160] for name, column in data.items()}
    np.savez(vectors, **fewer)
    with pytest.raises(UserError, match="have changed"):
        compare(vectors, ["triplet"], out=tmp_path, seeds=1, **QUICK, tune=2)


def test_a_winner_whose_folder_was_deleted_is_trained_again(
    vectors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = compare(vectors, ["triplet"], out=tmp_path / "whole", seeds=1, **QUICK, tune=2)
    with monkeypatch.context() as patch, pytest.raises(Interrupted):  # after tuning, before the runs
        patch.setattr(comparison, "_trained", Mock(side_effect=Interrupted))
        compare(vectors, ["triplet"], out=tmp_path / "cut", seeds=1, **QUICK, tune=2)
    for number in range(2):
        shutil.rmtree(tmp_path / "cut" / "tune" / f"triplet-{number}")
    assert compare(vectors, ["triplet"], out=tmp_path / "cut", seeds=1, **QUICK, tune=2).scores == whole.scores


def test_trials_give_no_advice_on_their_settings(
    vectors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("nearkin.training.verdict.CLEARLY", -1.0)  # every last epoch counts as clearly worse
    compare(vectors, ["triplet"], out=tmp_path, seeds=1, **QUICK, tune=2)
    assert caplog.text.count("is clearly worse than the best") == 1  # of the run, not of the trials


def test_a_row_of_which_no_trial_worked_is_tried_again(
    vectors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(UserError, match="not today"):
        patch.setattr("nearkin.experiments.runs.train", Mock(side_effect=UserError("not today")))
        compare(vectors, ["triplet"], out=tmp_path / "out", seeds=1, **QUICK, tune=2)
    assert [trial["refused"] for trial in trials(tmp_path / "out")["triplet"]] == ["not today"] * 2
    assert compare(vectors, ["triplet"], out=tmp_path / "out", seeds=1, **QUICK, tune=2).refused == {}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"concatenate": True, "protocol": "paper"}, 'use protocol="fair"'),
        ({"tune": -1}, "tune must be an integer >= 0, got -1"),
        ({"tune": 2.5}, "tune must be an integer >= 0, got 2.5"),
        ({"seeds": "2"}, "seeds must be an integer >= 1, got '2'"),
        ({"tune": 1}, "tune=1 cannot choose"),
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
        compare(vectors, ["triplet"], out=tmp_path / "out", **QUICK, tune=2)
    compare(vectors, ["triplet"], out=tmp_path / "out", seeds=1, **QUICK)  # nothing else needs it


def test_the_settings_of_a_wrapped_method_are_searched_too(vectors: str, tmp_path: Path) -> None:
    changes = QUICK | {"wraps": "margin:beta=0.8", "learners": 2, "dim": 8}
    found = compare(vectors, "divide-and-conquer", out=tmp_path, seeds=1, tune=2, **changes)
    first, second = (trial["settings"] for trial in trials(tmp_path)["divide-and-conquer"])
    assert (first["wraps.margin"], first["wraps.per_class"]) == (0.2, 4)  # the defaults
    assert "wraps.beta" not in first and second["wraps.margin"] != 0.2
    used = Run(tmp_path / "divide-and-conquer-0").settings().make_method()
    assert isinstance(used, DivideAndConquer) and isinstance(used.joint_method, Margin)
    assert used.joint_method.beta == 0.8
    assert used.joint_method.margin == found.chosen["divide-and-conquer"]["wraps.margin"]
