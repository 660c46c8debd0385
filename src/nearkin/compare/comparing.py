"""Several methods on the same data, with as many passes over them and the same seeds: one table, nothing done twice.

Two protocols. ``fair``: the model is chosen on classes held out of the training classes, other ones for each of four
consecutive seeds; nothing is chosen on the test part. ``paper``: trained on all training classes, the best point of the
curve on the test part is reported, as the papers did; its numbers are optimistic, and labelled so.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nearkin.compare.concatenation import concatenated_scores
from nearkin.compare.jobs import Lane, run_lanes
from nearkin.compare.plan import (
    PROTOCOLS,
    check_request,
    check_same_data,
    check_same_settings,
    command_of,
    names_of,
    settings_of,
    with_settings,
)
from nearkin.compare.result import COLUMNS, Comparison, by_falling_map_at_r
from nearkin.compare.task import Task, made, seconds_of
from nearkin.errors import UserError
from nearkin.files import write_json, write_text
from nearkin.messages import show_messages
from nearkin.methods.spectral import WITH_SC
from nearkin.training import Run, Settings
from nearkin.training.baseline import backbone_scores
from nearkin.training.defaults import resolved
from nearkin.training.once import measured_once
from nearkin.training.prepare import absolute, load_splits

log = logging.getLogger("nearkin")


def compare(
    data: str | Path,
    methods: Sequence[str],
    out: str | Path,
    seeds: int = 3,
    protocol: str = "fair",
    settings: dict[str, Any] | None = None,
    jobs: int = 1,
    tune: int = 0,
    concatenate: bool = False,
) -> Comparison:
    """Trains every method with seeds 0, 1, … and measures it; what ``out`` already holds is not done again.

    Args:
        data: what `nearkin train` takes.
        methods: their names; ``["all"]`` for all that nearkin has.
        out: a folder with one run for each method and seed, and the table as HTML, JSON, Markdown and LaTeX.
        settings: the same for all methods; one that only some of them know is for these. Batches are of each method's
            usual size unless ``batch_size`` is given.
        jobs: runs side by side, each in a process of its own, with the same results; a script that asks for several
            must begin them under ``if __name__ == "__main__":``.
        tune: trials that each method gets to find its learning rate and its own settings, judged on validation
            classes with seed 0; 0: the settings as they are.
        concatenate: also measure the models of each method's seeds together.

    >>> compare("glyphs", ["rank", "triplet"], "runs/two", settings={"epochs": 5})  # doctest: +SKIP
    """
    show_messages()
    data, out, given = str(data), Path(out), settings or {}
    check_request(seeds, protocol, given, jobs, tune, concatenate)
    names = names_of(methods)
    shared = {"patience": 0} | given | PROTOCOLS[protocol]
    if "epochs" not in given:  # by the data alone, so that all methods see as much
        anyone = settings_of(names[0], names, absolute(data), shared)
        splits = load_splits(anyone.data, seed=0)
        shared["epochs"] = resolved(anyone, splits, anyone.make_method()).training.epochs
    wanted = {name: settings_of(name, names, absolute(data), shared) for name in names}
    check_same_settings(out, protocol, wanted, tune)
    check_same_data(out, wanted, seeds)
    refused, chosen = _tuned(out, wanted, given, tune, jobs) if tune else ({}, {})
    refused |= _carried_out(out, {name: wanted[name] for name in names if name not in refused}, chosen, seeds, jobs)
    if len(refused) == len(names):
        raise UserError(next(iter(refused.values())))
    # A method that failed with one seed is not judged by the others: they would be its lucky ones.
    scores, with_sc = gathered(out, [name for name in names if name not in refused], seeds)
    several = scores if concatenate else {}
    runs = {name: [Run(out / f"{name}-{seed}") for seed in range(seeds)] for name in scores}
    comparison = Comparison(
        protocol,
        scores,
        refused,
        chosen={name: chosen[name] for name in scores if name in chosen},
        trials=tune,
        concatenated={f"{name}, {seeds} models": concatenated_scores(out, name, seeds) for name in several},
        seconds={name: [seconds_of(run) for run in each] for name, each in runs.items()},
        curves={name: [_curve(run) for run in each] for name, each in runs.items()},
        backbone=_backbone(out, next(iter(wanted.values()))),
        made=made(run for each in runs.values() for run in each),
        with_sc=with_sc,
    )
    _write(comparison, out, command_of(data, names, out, seeds, protocol, given, tune, concatenate))
    return comparison


def _tuned(
    out: Path, wanted: Mapping[str, Settings], given: Collection[str], trials: int, jobs: int
) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """Why methods were refused whatever was tried, and the chosen settings of the others."""
    from nearkin.compare.tuning import best, tune

    found = tune(out, {name: _with_rate(each) for name, each in wanted.items()}, given, trials, jobs)
    refused = {name: str(tried[0].refused) for name, tried in found.items() if all(each.refused for each in tried)}
    chosen = {name: best(tried) for name, tried in found.items() if name not in refused}
    write_json(out / "chosen.json", {name: asdict(trial) for name, trial in chosen.items()})
    return refused, {name: trial.settings for name, trial in chosen.items()}


def _with_rate(settings: Settings) -> Settings:
    """The settings with the learning rate that is usual for these data, around which others are tried."""
    try:
        usual = resolved(settings, load_splits(settings.data, seed=0), settings.make_method())
    except UserError:  # the first trial will say what is wrong
        return settings
    return with_settings(settings, {"learning_rate": usual.training.learning_rate})


def _carried_out(
    out: Path, wanted: Mapping[str, Settings], chosen: Mapping[str, dict[str, Any]], seeds: int, jobs: int
) -> dict[str, str]:
    """Runs every method with every seed; returns why methods were refused."""
    failures: dict[str, tuple[int, str]] = {}

    def one_run(name: str, seed: int) -> Lane:
        """The run of a method with one seed, unless the method has failed; notes the lowest seed that fails."""
        if name in failures:
            return
        settings = with_settings(wanted[name], chosen.get(name, {}) | {"seed": seed})
        reason = yield Task(f"{name}, seed {seed}", settings, out / f"{name}-{seed}")
        if reason is not None:
            log.warning("%s is left out: %s", name, reason)
            failures[name] = min(failures.get(name, (seed, reason)), (seed, reason))

    lanes = (one_run(name, seed) for seed in range(seeds) for name in wanted)
    run_lanes(lanes, seeds * len(wanted), jobs)
    return {name: failures[name][1] for name in wanted if name in failures}


def gathered(
    out: Path, names: Sequence[str], seeds: int
) -> tuple[dict[str, dict[str, list[float]]], dict[str, dict[str, list[float]]]]:
    """By method, one number of every score for each seed, by falling MAP@R; and the same with SC, where it is known."""
    found, with_sc = {}, {}
    for name in names:
        after = [Run(out / f"{name}-{seed}").scores["after"] for seed in range(seeds)]
        found[name] = {score: [one[score] for one in after] for score in COLUMNS}
        if WITH_SC + COLUMNS[0] in after[0]:
            with_sc[f"{name}, with SC"] = {score: [one[WITH_SC + score] for one in after] for score in COLUMNS}
    return by_falling_map_at_r(found), with_sc


def _curve(run: Run) -> list[tuple[int, float]]:
    return [(record["epoch"], record["map@r"]) for record in run.evaluations() if "map@r" in record]


def _backbone(out: Path, settings: Settings) -> dict[str, float]:
    of = (settings.data, settings.model, load_splits(settings.data, seed=0).digest())
    scores = measured_once(out / "backbone", of, lambda: backbone_scores(settings))
    return {name: scores[name] for name in COLUMNS}


def _write(comparison: Comparison, out: Path, command: str) -> None:
    from nearkin.report.comparison_page import comparison_page

    write_json(out / "comparison.json", vars(comparison) | {"command": command})
    write_text(out / "comparison.md", comparison.markdown())
    write_text(out / "comparison.tex", comparison.latex())
    write_text(out / "comparison.html", comparison_page(comparison, out, command))
