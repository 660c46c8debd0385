"""Tunes the settings of every method by successive halving, scored only on validation classes.

All trials train for a ninth of the epochs. The best third of them continues to a third of the epochs, and the best
third of those to the end (Jamieson and Talwalkar 2016, with a reduction factor of 3). The defaults, which come first,
always continue beside them, so the winner is never worse than they are. A trial continues from its checkpoint, with the
learning rates of the full number of epochs, so the last ones end up as if they had never stopped.
Every method gets the same number of epochs, known in advance.

The settings come from Optuna's tree-structured Parzen estimator with a fixed seed, one trial after the other, starting
with the defaults; it learns from the scores of the first rung. Replayed with the scores on disk, it proposes the same
trials again, so a search can be stopped anywhere and continued, or extended by more trials. A finished first rung is
not replayed, so it outlasts another version of Optuna and other default learning rates.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearkin.data.summary import counted
from nearkin.errors import UserError
from nearkin.experiments.pool import Job, run_jobs
from nearkin.files import read_json, write_json
from nearkin.methods.ranges import Between, Range
from nearkin.training import Run, Settings
from nearkin.training.defaults import FROM_SCRATCH, evaluation_interval
from nearkin.training.model_selection import PRIMARY
from nearkin.training.settings import TrainingSettings

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import Study

    from nearkin.experiments.comparison_plan import Row

log = logging.getLogger("nearkin")

DEFAULTS = 0  # the number of the trial with the default settings
RANDOM_TRIALS = 5  # after the defaults, before the search uses the scores
REDUCTION = 3  # the best third of the trials continues to the next rung, beside the defaults


@dataclass(frozen=True)
class Rung:
    """A number of trials, each of which trains up to a number of epochs, counted from its start."""

    trials: int
    epochs: int


@dataclass(frozen=True)
class Trial:
    """The settings of a trial, its best validation MAP@R by the end of each rung, and why it was refused, if it was."""

    settings: dict[str, Any]
    scores: tuple[float, ...] = ()
    refused: str | None = None


def plan(trials: int, training: TrainingSettings) -> list[Rung]:
    """The rungs: all trials, a third and a ninth of them, for a ninth, a third and all of the epochs, rounded up.

    The defaults come in addition. A rung ends with an evaluation that a full run has too. With few epochs or trials,
    there are fewer rungs.

    >>> plan(15, TrainingSettings(epochs=27))
    [Rung(trials=15, epochs=3), Rung(trials=6, epochs=9), Rung(trials=3, epochs=27)]
    >>> plan(3, TrainingSettings(epochs=27))
    [Rung(trials=3, epochs=3), Rung(trials=2, epochs=27)]
    """
    last = min(training.stop_after or training.epochs, training.epochs)
    every = max(1, evaluation_interval(training))
    ends = {min(last, every * math.ceil(last / (every * REDUCTION**power))) for power in range(3)}
    counts = [trials, *(min(trials, 1 + math.ceil(trials / REDUCTION**place)) for place in range(1, len(ends)))]
    rungs = [Rung(count, end) for count, end in zip(counts, sorted(ends), strict=True)]
    return list({rung.trials: rung for rung in rungs}.values())  # there is nothing to choose between equal numbers


def epochs_of(rungs: Sequence[Rung]) -> int:
    """The epochs that all trials of a method train together.

    >>> epochs_of(plan(15, TrainingSettings(epochs=27)))  # 15 × 3 + 6 × (9 − 3) + 3 × (27 − 9)
    135
    """
    return sum(rung.trials * (rung.epochs - before.epochs) for before, rung in pairwise([Rung(0, 0), *rungs]))


def stops_of(trials: int, training: TrainingSettings) -> str:
    """The epochs after which trials stop, for a message.

    >>> stops_of(15, TrainingSettings(epochs=27))
    '3, 9, 27'
    """
    return ", ".join(str(rung.epochs) for rung in plan(trials, training))


def in_words(rungs: Sequence[Rung]) -> str:
    """The plan and its cost, for a message.

    >>> print(in_words(plan(9, TrainingSettings(epochs=27))).replace("; ", "\\n"))
    9 trials for 3 epochs
    the defaults and the best 3 continue to 9, the best 1 to 27
    87 epochs per method instead of 9 × 27 = 243
    """
    first, *others = rungs
    steps = [
        f"the best {rung.trials - 1} {'' if place else 'continue '}to {rung.epochs}"
        for place, rung in enumerate(others)
    ]
    full = f"{first.trials} × {rungs[-1].epochs} = {first.trials * rungs[-1].epochs}"
    start = f"{counted(first.trials, 'trial')} for {counted(first.epochs, 'epoch')}"
    cost = f"{counted(epochs_of(rungs), 'epoch')} per method"
    continued = [f"the defaults and {', '.join(steps)}", f"{cost} instead of {full}"] if others else [cost]
    return "; ".join([start, *continued])


def ranges_of(settings: Settings, given: Collection[str]) -> dict[str, Range]:
    """The search space: the learning rate around its default, and the method's own ranges for settings not given.

    >>> from nearkin.training.settings import make_settings
    >>> ranges_of(make_settings("glyphs", "npairs", {"learning_rate": 0.5}), given=["regularization"])
    {'learning_rate': Between(low=0.1, high=2.5, log=True)}
    """
    rate = settings.training.learning_rate or FROM_SCRATCH
    own = {name: where for name, (_, where) in settings.make_method().searched().items() if name not in given}
    return {"learning_rate": Between(rate / 5, rate * 5, log=True), **own}


def tune(out: Path, rows: Mapping[str, Row], rungs: Sequence[Rung], jobs: int) -> dict[str, list[Trial]]:
    """Runs the trials of every row and returns them in order; reuses the trials in ``out``.

    In the first rung, the trials of a row run one after the other, because Optuna learns from each. In later rungs, all
    trials of all rows may run in parallel.

    Args:
        out: folder of the comparison; the trials are runs in its folder ``tune``.
        rows: the rows to tune, with their default settings; Optuna's seed is that of the training.
        rungs: how many trials train for how many epochs.
    """
    file = out / "tune" / "trials.json"
    stored = _read_trials(file)
    known = {name: stored.get(name, []) for name in stored | dict(rows)}
    for name in rows:  # a row of which no trial worked is tried again: the reason may be gone
        if all(trial.refused is not None for trial in known[name]):
            known[name] = [replace(trial, refused=None) for trial in known[name]]

    def store() -> None:
        write_json(file, {name: [asdict(trial) for trial in tried] for name, tried in known.items()})

    def advance(name: str, number: int, rung: int) -> Job:
        """Trains a trial to the end of a rung."""
        row, trial = rows[name], known[name][number]
        if trial.refused is not None or len(trial.scores) > rung:
            return
        # The last rung has the settings of a run of the comparison, which may take it over.
        end = row.settings.training.stop_after if rung + 1 == len(rungs) else rungs[rung].epochs
        run = trial_run(out, name, number)
        label = f"{name}, trial {number + 1}, epochs up to {rungs[rung].epochs}"
        reason = yield row.changed(trial.settings | {"stop_after": end}).task(label, run.folder, tested=False)
        if reason is None:
            trial = replace(trial, scores=(*trial.scores, _best_validation(run)))
        else:
            log.warning("%s, trial %d counts as 0: %s", name, number + 1, reason)
            trial = replace(trial, refused=reason)
        known[name][number] = trial
        store()

    def search(name: str) -> Job:
        """Proposes the trials of a row and trains each to the end of the first rung."""
        tried = known[name]
        if _finished(tried[: rungs[0].trials], rungs[0], ranges_of(rows[name].settings, rows[name].given)):
            return
        study, distributions = study_of(rows[name])
        for number in range(rungs[0].trials):
            proposed = study.ask(distributions)
            if number == len(tried):
                tried.append(Trial(proposed.params))
            elif tried[number].settings != proposed.params:
                run = trial_run(out, name, number)
                if tried[number].scores or run.config_file.is_file():
                    raise UserError(
                        f"{run.folder} was tuned with other settings, or another version of Optuna; "
                        "use another folder: out=..."
                    )
                tried[number] = Trial(proposed.params)
            store()  # before training, so that a stopped trial goes on with its own settings
            yield from advance(name, number, 0)
            study.tell(proposed, next(iter(tried[number].scores), 0.0))

    run_jobs(map(search, rows), rungs[0].trials * len(rows), jobs)
    for rung in range(1, len(rungs)):
        promoted = [(name, number) for name in rows for number in _training_in(known[name], rungs, rung)]
        run_jobs((advance(name, number, rung) for name, number in promoted), len(promoted), jobs)
    return {name: known[name][: rungs[0].trials] for name in rows}


def trial_run(out: Path, name: str, number: int) -> Run:
    return Run(out / "tune" / f"{name}-{number}")


def best(trials: Sequence[Trial], rungs: Sequence[Rung]) -> int | None:
    """The number of the best trial of the last rung, the first of equal ones; None if all trials were refused.

    If every trial of the last rung was refused, it is the best of the rung before.

    >>> best([Trial({"margin": 1}, (0.3,)), Trial({"margin": 2}, (0.4, 0.5))], [Rung(2, 1), Rung(1, 3)])
    1
    """
    for rung in reversed(range(len(rungs))):
        passed = [number for number in _ranking(trials, rungs, rung) if trials[number].refused is None]
        if passed:
            return passed[0]
    return None


def study_of(row: Row) -> tuple[Study, dict[str, BaseDistribution]]:
    """A study whose first trial has the row's defaults, and the ranges that it searches."""
    optuna, row = find_optuna(), _with_rate(row)
    ranges, own = ranges_of(row.settings, row.given), row.settings.make_method().searched()
    defaults = vars(row.settings.training) | {name: value for name, (value, _) in own.items()}
    sampler = optuna.samplers.TPESampler(seed=row.settings.training.seed, n_startup_trials=1 + RANDOM_TRIALS)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.enqueue_trial({name: defaults[name] for name in ranges})
    distributions: dict[str, BaseDistribution] = {
        name: optuna.distributions.FloatDistribution(where.low, where.high, log=where.log)
        if isinstance(where, Between)
        else optuna.distributions.CategoricalDistribution(where.values)
        for name, where in ranges.items()
    }
    return study, distributions


def _finished(trials: Sequence[Trial], rung: Rung, searched: Collection[str]) -> bool:
    """Whether all trials of the first rung are over and searched the same settings."""
    return len(trials) == rung.trials and all(
        trial.settings.keys() == set(searched) and (trial.scores or trial.refused is not None) for trial in trials
    )


def _training_in(trials: Sequence[Trial], rungs: Sequence[Rung], rung: int) -> list[int]:
    """The trials that train in a rung: the defaults, and the best of the rung before."""
    ranked = _ranking(trials, rungs, rung - 1) if rung else range(len(trials))
    return sorted(ranked, key=lambda number: number != DEFAULTS)[: rungs[rung].trials]


def _ranking(trials: Sequence[Trial], rungs: Sequence[Rung], rung: int) -> list[int]:
    """The trials that were not refused in a rung, best first; the first of equal ones comes first."""
    passed = [number for number in _training_in(trials, rungs, rung) if len(trials[number].scores) > rung]
    return sorted(passed, key=lambda number: -trials[number].scores[rung])


def _with_rate(row: Row) -> Row:
    """The row with the default learning rate for its data; the trials try rates around it."""
    try:
        return row.changed({"learning_rate": row.resolved().training.learning_rate})
    except UserError:  # the first trial will report it
        return row.changed({"learning_rate": FROM_SCRATCH})


def _best_validation(run: Run) -> float:
    """The best score that chooses the model on validation classes."""
    scores = (record[PRIMARY] for record in run.evaluations() if record["split"] == "validation")
    return max(map(float, scores), default=0.0)


def _read_trials(file: Path) -> dict[str, list[Trial]]:
    stored: dict[str, list[dict[str, Any]]] = read_json(file, dict) if file.is_file() else {}
    try:
        return {
            name: [Trial(each["settings"], tuple(each["scores"]), each["refused"]) for each in tried]
            for name, tried in stored.items()
        }
    except (KeyError, TypeError):
        raise UserError(f"{file} was written by another version of nearkin; use another folder: out=...") from None


def find_optuna() -> Any:
    """Imports Optuna, or says how to install it."""
    try:
        import optuna
    except ImportError:
        raise UserError("tuning needs Optuna; run `pip install 'nearkin[tune]'`") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
