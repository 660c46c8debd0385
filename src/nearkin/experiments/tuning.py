"""Tunes the settings of every method with the same number of trials, scored only on validation classes.

The search is Optuna's tree-structured Parzen estimator with a fixed seed, one trial after the other, starting with the
defaults. Replayed with the scores on disk, it proposes the same trials again, so a search can be stopped anywhere and
continued, or extended by more trials.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearkin.errors import UserError
from nearkin.experiments.comparison_plan import Row
from nearkin.experiments.pool import Job, run_jobs
from nearkin.experiments.runs import full_tables
from nearkin.files import read_json, write_json
from nearkin.methods import method_class
from nearkin.methods.ranges import Between, Range
from nearkin.training import Run, Settings
from nearkin.training.defaults import FROM_SCRATCH

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import Study

log = logging.getLogger("nearkin")

RANDOM_TRIALS = 5  # after the defaults, before the search uses the scores


@dataclass(frozen=True)
class Trial:
    """The settings of a trial and its best validation MAP@R; 0 if it was refused, with the reason."""

    settings: dict[str, Any]
    score: float
    refused: str | None = None


def ranges_of(settings: Settings, given: Collection[str]) -> dict[str, Range]:
    """The search space: the learning rate around its default, and the method's own ranges for settings not given.

    >>> from nearkin.training.settings import make_settings
    >>> ranges_of(make_settings("glyphs", "npairs", {"learning_rate": 0.5}), given=["regularization"])
    {'learning_rate': Between(low=0.1, high=2.5, log=True)}
    """
    rate = settings.training.learning_rate or FROM_SCRATCH
    own = {name: where for name, where in method_class(settings.method).ranges.items() if name not in given}
    return {"learning_rate": Between(rate / 5, rate * 5, log=True), **own}


def tune(out: Path, rows: Mapping[str, Row], trials: int, jobs: int) -> dict[str, list[Trial]]:
    """Runs the trials of every row and returns them in order; reuses the trials in ``out``.

    Args:
        out: folder of the comparison; the trials are runs in its folder ``tune``.
        rows: the rows to tune, with their default settings.
    """
    file = out / "tune" / "trials.json"
    stored = read_json(file, dict) if file.is_file() else {}
    known = {name: [Trial(**trial) for trial in stored.get(name, [])] for name in stored | dict(rows)}

    def search(name: str, row: Row) -> Job:
        study, distributions = _study(row.settings, ranges_of(row.settings, row.given))
        for number in range(trials):
            proposed = study.ask(distributions)
            folder = out / "tune" / f"{name}-{number}"
            if number == len(known[name]):
                reason = yield row.changed(proposed.params).task(f"{name}, trial {number + 1}", folder, tested=False)
                if reason is not None:
                    log.warning("%s, trial %d counts as 0: %s", name, number + 1, reason)
                score = 0.0 if reason is not None else _best_validation(Run(folder))
                known[name].append(Trial(proposed.params, score, reason))
                write_json(file, {name: [asdict(trial) for trial in tried] for name, tried in known.items()})
            elif known[name][number].settings != proposed.params:
                raise UserError(
                    f"{folder} was tuned with other settings, or another version of Optuna; use another folder: out=..."
                )
            study.tell(proposed, known[name][number].score)

    run_jobs((search(*item) for item in rows.items()), trials * len(rows), jobs)
    return {name: known[name][:trials] for name in rows}


def best(trials: list[Trial]) -> Trial:
    """The best trial that was not refused; the first of equal ones.

    >>> best([Trial({"margin": 1}, 0.2), Trial({"margin": 2}, 0.3), Trial({"margin": 3}, 0.3)]).settings
    {'margin': 2}
    """
    return max(trials, key=lambda trial: (trial.refused is None, trial.score))


def _study(settings: Settings, ranges: Mapping[str, Range]) -> tuple[Study, dict[str, BaseDistribution]]:
    optuna = find_optuna()
    sampler = optuna.samplers.TPESampler(seed=0, n_startup_trials=1 + RANDOM_TRIALS)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    tables = full_tables(settings)
    study.enqueue_trial({name: (tables["training"] | tables["method"])[name] for name in ranges})
    distributions: dict[str, BaseDistribution] = {
        name: optuna.distributions.FloatDistribution(where.low, where.high, log=where.log)
        if isinstance(where, Between)
        else optuna.distributions.CategoricalDistribution(where.values)
        for name, where in ranges.items()
    }
    return study, distributions


def _best_validation(run: Run) -> float:
    scores = (record["map@r"] for record in run.evaluations() if record["split"] == "validation")
    return max(map(float, scores), default=0.0)


def find_optuna() -> Any:
    """Imports Optuna, or says how to install it."""
    try:
        import optuna
    except ImportError:
        raise UserError("tuning needs Optuna; run `pip install 'nearkin[tune]'`") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
