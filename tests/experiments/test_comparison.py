"""Comparisons: the same budget for all methods, one table, runs are reused and never mixed."""

from __future__ import annotations

import json
import logging
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Command
from scipy.stats import t

import nearkin
from nearkin.errors import Interrupted, UserError
from nearkin.experiments import ComparisonResult, compare
from nearkin.experiments.comparison_result import COLUMNS, mean_in_words
from nearkin.methods import Triplet
from nearkin.training import Run, loop

QUICK: dict[str, Any] = {"epochs": 2, "batch_size": 16, "dim": 8, "backbone": "linear", "device": "cpu"}


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the runs that were actually trained."""
    names: list[str] = []
    original = loop.train

    def noting(settings: Any, folder: Path, tested: bool, **objects: Any) -> Any:
        names.append(folder.name)
        return original(settings, folder, tested, **objects)

    monkeypatch.setattr("nearkin.experiments.runs.train", noting)
    return names


def test_every_method_is_run_with_every_seed_and_the_best_comes_first(vectors: str, tmp_path: Path) -> None:
    found = compare(vectors, ["triplet", "rank", "softmax"], out=tmp_path / "out", seeds=2, **QUICK)
    means = [np.mean(scores["map@r"]) for scores in found.scores.values()]
    assert set(found.scores) == {"triplet", "rank", "softmax"}
    assert means == sorted(means, reverse=True)
    for method, scores in found.scores.items():
        after = [json.loads((tmp_path / "out" / f"{method}-{s}" / "scores.json").read_text())["after"] for s in (0, 1)]
        assert scores == {name: [one[name] for one in after] for name in COLUMNS}
    assert json.loads((tmp_path / "out" / "comparison.json").read_text())["scores"] == found.scores
    markdown, latex = ((tmp_path / "out" / f"comparison.{kind}").read_text() for kind in ("md", "tex"))
    assert markdown.count("\n|") == 5 and "| backbone alone |" in markdown and "held-out training classes" in markdown
    assert latex.count(r"$\pm$") == 3 * len(COLUMNS) + 1 and r"\caption{fair: models chosen on held-out" in latex
    assert "| method | Recall@1 |" in markdown and "NMI (arithmetic)" in latex


def test_what_is_finished_is_not_repeated_and_more_may_be_added(
    vectors: str, tmp_path: Path, trained: list[str]
) -> None:
    first = compare(vectors, ["triplet"], out=tmp_path / "out", seeds=1, **QUICK)
    assert trained == ["triplet-0"]
    more = compare(vectors, ["triplet", "softmax"], out=tmp_path / "out", seeds=2, **QUICK)
    assert trained == ["triplet-0", "softmax-0", "triplet-1", "softmax-1"]
    assert more.scores["triplet"]["map@r"][0] == first.scores["triplet"]["map@r"][0]


def test_other_settings_do_not_mix_with_what_is_there(vectors: str, tmp_path: Path) -> None:
    compare(vectors, ["triplet"], out=tmp_path / "out", seeds=1, **QUICK)
    for changes, said in (
        ({"epochs": 3}, "epochs was 2, now it is 3"),
        ({"protocol": "paper"}, "protocol was 'fair', now it is 'paper'"),
    ):
        with pytest.raises(UserError, match=f"has runs of triplet with other settings: {said}; use the same"):
            compare(vectors, ["triplet"], out=tmp_path / "out", seeds=1, **(QUICK | changes))


def test_a_run_that_was_trained_for_other_epochs_is_not_compared(vectors: str, tmp_path: Path) -> None:
    compare(vectors, ["triplet"], out=tmp_path / "out", seeds=1, **QUICK)
    nearkin.resume(tmp_path / "out" / "triplet-0", epochs=4)
    with pytest.raises(UserError, match="triplet-0 was trained for 4 epochs instead of 2; delete it, or"):
        compare(vectors, ["triplet"], out=tmp_path / "out", seeds=1, **QUICK)


def test_other_settings_do_not_mix_with_seeds_that_are_not_asked_for_now(vectors: str, tmp_path: Path) -> None:
    compare(vectors, ["triplet"], out=tmp_path / "out", seeds=2, **QUICK)
    shutil.rmtree(tmp_path / "out" / "triplet-0")
    with pytest.raises(UserError, match="other settings"):
        compare(vectors, ["triplet"], out=tmp_path / "out", seeds=1, **(QUICK | {"epochs": 3}))


def test_a_comparison_of_an_earlier_version_can_be_continued(vectors: str, tmp_path: Path, trained: list[str]) -> None:
    compare(vectors, ["triplet"], out=tmp_path / "out", seeds=1, **QUICK)
    file = tmp_path / "out" / "settings.json"
    earlier = json.loads(file.read_text())
    del earlier["triplet"]["training"]["batches"], earlier["triplet"]["method"]["margin"]  # it had no such settings
    file.write_text(json.dumps(earlier))
    compare(vectors, ["triplet"], out=tmp_path / "out", seeds=1, **QUICK)
    assert trained == ["triplet-0"]
    with pytest.raises(UserError, match="has runs of triplet with other settings"):
        compare(vectors, ["triplet"], out=tmp_path / "out", seeds=1, **QUICK, batches="clusters")


def test_an_interrupted_comparison_goes_on_where_it_stopped(
    vectors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = compare(vectors, ["triplet"], out=tmp_path / "whole", seeds=1, **QUICK)
    from nearkin.training.loop import Trainer

    save = Trainer._save_or_stop
    monkeypatch.setattr(Trainer, "_save_or_stop", lambda self, asked: save(self, asked or self.position.step == 3))
    with pytest.raises(Interrupted):
        compare(vectors, ["triplet"], out=tmp_path / "cut", seeds=1, **QUICK)
    monkeypatch.undo()
    assert compare(vectors, ["triplet"], out=tmp_path / "cut", seeds=1, **QUICK).scores == whole.scores


def test_protocols_choose_the_model_as_they_say(vectors: str, tmp_path: Path) -> None:
    for protocol, chosen in (("fair", "best MAP@R on the validation split"), ("paper", "best MAP@R on the test split")):
        compare(vectors, ["triplet"], out=tmp_path / protocol, seeds=1, protocol=protocol, **QUICK)
        assert json.loads((tmp_path / protocol / "triplet-0" / "scores.json").read_text())["chosen"] == chosen


def test_a_setting_is_for_the_methods_that_know_it(vectors: str, tmp_path: Path) -> None:
    compare(vectors, ["triplet", "softmax"], out=tmp_path / "out", seeds=1, **(QUICK | {"margin": 0.5}))
    assert "margin = 0.5" in (tmp_path / "out" / "triplet-0" / "config.toml").read_text()
    with pytest.raises(UserError, match="did you mean 'margin'"):
        compare(vectors, ["triplet"], out=tmp_path / "other", margni=0.5)


@pytest.mark.parametrize("name", ["keep", "seed", "validation"])
def test_what_the_protocol_decides_cannot_be_set(vectors: str, tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=f"{name} is set by the protocol"):
        compare(vectors, ["triplet"], out=tmp_path / "out", **(QUICK | {name: 0}))


def test_changed_data_do_not_mix_with_what_is_there(vectors: str, tmp_path: Path) -> None:
    compare(vectors, ["triplet"], out=tmp_path / "out", seeds=1, **QUICK)
    with np.load(vectors) as data:
        fewer = {name: column[:160] for name, column in data.items()}
    np.savez(vectors, **fewer)
    with pytest.raises(UserError, match="have changed"):
        compare(vectors, ["triplet", "softmax"], out=tmp_path / "out", seeds=1, **QUICK)


def test_a_method_that_fails_with_one_seed_is_not_judged_by_the_others(
    vectors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = loop.train

    def failing(settings: Any, folder: Path, tested: bool, **objects: Any) -> Any:
        if folder.name == "triplet-1":
            raise UserError("the loss became nan")
        return original(settings, folder, tested, **objects)

    monkeypatch.setattr("nearkin.experiments.runs.train", failing)
    found = compare(vectors, ["triplet", "softmax"], out=tmp_path / "out", seeds=2, **QUICK)
    assert set(found.scores) == {"softmax"} and found.refused == {"triplet": "the loss became nan"}


def test_what_no_method_can_do_is_an_error(vectors: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no test split"):
        compare(vectors, ["triplet"], out=tmp_path / "a", **(QUICK | {"split": "all"}))
    assert not (tmp_path / "a").exists()
    with pytest.raises(UserError, match=r"file or folder .* does not exist"):
        compare("nothere.npz", ["triplet"], out=tmp_path / "b", **QUICK)
    with pytest.raises(UserError, match="always 0"):
        compare(vectors, ["spectral"], out=tmp_path / "c", **(QUICK | {"dim": 16}))
    compare(vectors, ["spectral"], out=tmp_path / "c", seeds=1, **QUICK)  # without runs, nothing is reserved


def test_a_run_killed_before_its_first_checkpoint_goes_on(vectors: str, tmp_path: Path) -> None:
    whole = compare(vectors, ["triplet"], out=tmp_path / "out", seeds=1, **QUICK)
    run = Run(tmp_path / "out" / "triplet-0")
    run.checkpoint_file.unlink()
    run.scores_file.unlink()
    assert compare(vectors, ["triplet"], out=tmp_path / "out", seeds=1, **QUICK).scores == whole.scores


def test_a_method_that_cannot_be_trained_is_left_out_with_its_reason(vectors: str, tmp_path: Path) -> None:
    found = compare(vectors, ["spectral", "triplet"], out=tmp_path / "out", seeds=2, **(QUICK | {"dim": 16}))
    assert "always 0" in found.refused["spectral"]
    assert set(found.scores) == {"triplet"}


@pytest.mark.parametrize("epochs", [{}, {"epochs": 2}])
def test_a_first_method_with_impossible_settings_is_left_out_too(
    vectors: str, tmp_path: Path, epochs: dict[str, int]
) -> None:
    given = {name: value for name, value in QUICK.items() if name not in ("epochs", "batch_size")}
    options = given | {"stop_after": 2} | epochs  # without a batch size, the defaults of the first row fail
    for changes in ({}, {"backbone": torch.nn.Linear(6, 8)}):
        out = tmp_path / str(len(changes))
        found = compare(vectors, ["rank:per_class=200", "triplet"], out=out, seeds=1, **(options | changes))
        assert set(found.scores) == {"triplet"} and "200 items of a class" in found.refused["rank,per_class=200"]


def test_the_data_are_described_once(vectors: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "nearkin"):
        compare(vectors, ["triplet"], out=tmp_path, seeds=2, **QUICK)
    assert sum(text.startswith("data ") for text in caplog.messages) == 1
    assert sum(text.startswith("model ") for text in caplog.messages) == 2


def test_intervals_are_students() -> None:
    values = [0.31, 0.35, 0.39, 0.30]
    half = t.ppf(0.975, 3) * np.std(values, ddof=1) / 2
    assert mean_in_words(values) == f"{np.mean(values):.4f} ± {half:.4f}"


def test_a_method_may_be_an_object_with_settings_of_its_own(vectors: str, tmp_path: Path) -> None:
    methods = [Triplet(margin=0.5), "softmax"]
    found = compare(vectors, methods, out=tmp_path / "out", seeds=1, **QUICK, margin=0.7)
    assert set(found.scores) == {"triplet", "softmax"}
    assert Run(tmp_path / "out" / "triplet-0").settings().method_settings["margin"] == 0.5
    assert (
        found.command.startswith("nearkin.compare('") and "Triplet(margin=0.5, per_class=4), 'softmax'" in found.command
    )
    with pytest.raises(UserError, match="'triplet' is given twice with different settings"):
        compare(vectors, [Triplet(), Triplet(margin=0.5)], out=tmp_path / "twice", **QUICK)
    classes: Any = [Triplet]
    with pytest.raises(UserError, match="a method must be a name, an object"):
        compare(vectors, classes, out=tmp_path / "class", **QUICK)


def test_printed_a_result_is_its_table_and_pandas_has_a_row_for_each_method_and_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scores = {name: [0.25, 0.75] for name in COLUMNS}
    result = ComparisonResult("fair", {"rank": scores}, backbone=dict.fromkeys(COLUMNS, 0.125))
    assert str(result) == repr(result) == result.markdown()
    table = result.to_pandas()
    assert table[["method", "seed", "map@r"]].to_numpy().tolist() == [
        ["rank", 0, 0.25],
        ["rank", 1, 0.75],
        ["backbone alone", 0, 0.125],
    ]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match="pip install pandas"):
        result.to_pandas()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--methods", "tripled"], "did you mean 'triplet'"),
        (["--protocol", "fare"], "did you mean 'fair'"),
        (["--seeds", "0"], "--seeds must be an integer >= 1, got 0"),
    ],
)
def test_mistakes_end_in_one_sentence(nearkin: Command, vectors: str, arguments: list[str], expected: str) -> None:
    outcome = nearkin("compare", vectors, *arguments)
    assert outcome.code == 1 and expected in outcome.err and outcome.err.count("\n") == 1


def test_the_command_prints_the_table(nearkin: Command, vectors: str) -> None:
    options = [f"--set={name}={value}" for name, value in QUICK.items()]
    outcome = nearkin("compare", vectors, "--methods", "triplet,softmax", "--seeds", "2", *options)
    assert outcome.code == 0, outcome.err
    assert "triplet" in outcome.out and "±" in outcome.out and "Recall@1" in outcome.out
