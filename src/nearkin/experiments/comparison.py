"""Compares methods on the same data, with the same epochs and seeds; finished runs are reused.

There are two protocols. ``fair``: the model is chosen on held-out training classes, which differ between any four
consecutive seeds; the test split chooses nothing. ``paper``: the model is trained on all training classes, and the best
point of the test curve is reported, as in the papers; these numbers are optimistic, and labelled so.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from nearkin.errors import UserError
from nearkin.experiments.comparison_plan import (
    Methods,
    Row,
    backbone_digest,
    check_objects,
    check_request,
    check_same_data,
    check_same_settings,
    command_of,
    first_possible,
    rows_of,
)
from nearkin.experiments.comparison_result import COLUMNS, ComparisonResult, by_falling_map_at_r
from nearkin.experiments.concatenation import concatenated_scores
from nearkin.experiments.pool import Job, run_jobs
from nearkin.experiments.runs import cached, provenance_of, seconds_of
from nearkin.experiments.tuning import Rung, best, epochs_of, find_optuna, in_words, plan, trial_run
from nearkin.experiments.tuning import tune as tune_rows
from nearkin.files import write_json, write_text
from nearkin.messages import show_messages, without_repetition
from nearkin.methods import method_class
from nearkin.training import Run
from nearkin.training.baseline import backbone_scores
from nearkin.training.objects import Objects, copied, take_objects
from nearkin.training.prepare import absolute

log = logging.getLogger("nearkin")
Scores = dict[str, dict[str, list[float]]]  # by method and score, one number per seed
Chosen = dict[str, tuple[dict[str, Any], Run | None]]  # by method, the best settings and the trial to take over


def default_folder(data: str) -> Path:
    """The default folder of a comparison.

    >>> default_folder("glyphs:classes=40")
    PosixPath('runs/compare-glyphs')
    """
    return Path("runs") / f"compare-{Path(data.partition(':')[0]).stem or 'data'}"


@without_repetition()
def compare(
    data: Any,
    methods: Methods = "all",
    seeds: int = 3,
    protocol: str = "fair",
    jobs: int = 1,
    tune: int = 0,
    concatenate: bool = False,
    out: str | Path | None = None,
    **settings: Any,
) -> ComparisonResult:
    """Compares methods on the same data, with the same epochs and seeds. Finished runs in ``out`` are reused.

    Args:
        data: anything `nearkin.train` takes: a path, a name, arrays ``(X, y)``, a torch or Hugging Face dataset.
        methods: names, as a list or separated by commas; objects such as ``nearkin.methods.Magnet(alpha=2.0)``; loss
            modules, whose rows are named after their classes; "all" for every method.
        seeds: number of runs per method, with seeds 0, 1, …
        protocol: where to choose the best epoch: "fair" (held-out training classes) or "paper" (test split). Tuning
            uses held-out training classes with both; "paper" then trains on all classes with the best settings.
        jobs: number of runs in parallel, each in its own process; the results do not depend on it. A script that uses
            several must call this under ``if __name__ == "__main__":``. Data, backbones and losses in memory need
            ``jobs=1``.
        tune: number of tuning trials per method, for its learning rate and its own settings, scored on validation
            classes with seed 0; 0: no tuning. All trials train for a ninth of the epochs, the best third of them for a
            third, and the best ninth and the defaults for all epochs, so 9 trials cost less than 4 full runs.
        concatenate: also evaluate the concatenated embeddings of all seeds.
        out: folder for the runs and the results (HTML, JSON, Markdown and LaTeX); by default
            ``runs/compare-<data>``.
        settings: settings for all methods; a setting that only some methods have applies to those. Each method uses its
            own batch size unless ``batch_size`` is given. ``backbone`` may be a module; every run trains a copy.

    >>> compare("glyphs", ["rank", "triplet"], out="runs/two", epochs=5)  # doctest: +SKIP
    >>> compare((X, y), ["rank", MultiSimilarityLoss()], backbone=module)  # doctest: +SKIP
    """
    show_messages()
    check_request(seeds, protocol, settings, jobs, tune, concatenate)
    settings, objects = take_objects(data, settings)
    dataset = objects.get("dataset")
    source = str(data) if dataset is None else dataset.source
    out = Path(out or default_folder(source if dataset is None else dataset.name))
    rows = rows_of(methods, absolute(source), settings, protocol, objects)
    trial_rows = rows_of(methods, absolute(source), settings, "fair", objects) if tune else {}
    check_objects(rows, jobs)
    if next(iter(rows.values())).settings.training.epochs < 0:  # depends only on the data, so all train equally long
        epochs = {"epochs": first_possible(rows).resolved().training.epochs}
        rows, trial_rows = ({name: row.changed(epochs) for name, row in each.items()} for each in (rows, trial_rows))
    described = check_same_settings(out, protocol, rows, tune)
    check_same_data(out, rows, trial_rows, seeds)
    if tune:
        find_optuna()  # raises if it is not installed
    write_json(out / "settings.json", described)

    rungs = plan(tune, next(iter(rows.values())).settings.training) if tune else []
    refused, chosen = _tuned(out, trial_rows, rungs, jobs, protocol) if tune else ({}, {})
    refused |= _trained(out, {name: rows[name] for name in rows if name not in refused}, chosen, seeds, jobs)
    if len(refused) == len(rows):
        raise UserError(next(iter(refused.values())))
    # A method that failed with one seed is left out: the other seeds would be a biased selection.
    runs = {name: [Run(out / f"{name}-{seed}") for seed in range(seeds)] for name in rows if name not in refused}
    taken_over = [trial for name, (_, trial) in chosen.items() if trial and name in runs]
    scores, read_outs = _scores(runs)
    result = ComparisonResult(
        protocol,
        scores,
        refused,
        chosen={name: chosen[name][0] for name in scores if name in chosen},
        trials=tune,
        tuning_epochs=epochs_of(rungs),
        concatenated={
            f"{name}, {seeds} models": concatenated_scores(out, name, seeds, dataset, objects.get("backbone"))
            for name in scores
            if concatenate
        },
        seconds={name: [seconds_of(run) for run in runs[name]] for name in scores},
        curves={name: [_curve(run) for run in runs[name]] for name in scores},
        backbone=_backbone(out, rows[next(iter(runs))]),
        made=provenance_of([*chain.from_iterable(runs.values()), *taken_over]),
        read_outs=read_outs,
        command=command_of(source, methods, seeds, protocol, settings, tune, concatenate, out, objects),
    )
    _write(result, out)
    return result


def _tuned(
    out: Path, rows: Mapping[str, Row], rungs: Sequence[Rung], jobs: int, protocol: str
) -> tuple[dict[str, str], Chosen]:
    """The reason for every method that failed in all trials, and the best trial of the others.

    The run of seed 0 takes over the best trial, unless that had fewer classes, or its folder was deleted.
    """
    log.info("tuning: %s", in_words(rungs))
    found = tune_rows(out, rows, rungs, jobs)
    numbers = {name: best(tried, rungs) for name, tried in found.items()}
    refused = {name: str(found[name][0].refused) for name, number in numbers.items() if number is None}
    chosen = {name: (found[name][number], number) for name, number in numbers.items() if number is not None}
    write_json(out / "chosen.json", {name: asdict(trial) for name, (trial, _) in chosen.items()})
    trials = {name: trial_run(out, name, number) for name, (_, number) in chosen.items()}
    usable = {name: run for name, run in trials.items() if protocol == "fair" and run.scores_file.is_file()}
    return refused, {name: (trial.settings, usable.get(name)) for name, (trial, _) in chosen.items()}


def _trained(out: Path, rows: Mapping[str, Row], chosen: Chosen, seeds: int, jobs: int) -> dict[str, str]:
    """Trains every method with every seed; returns the reason for each method that failed."""
    failures: dict[str, tuple[int, str]] = {}

    def one_run(name: str, seed: int) -> Job:
        """Runs a method with one seed, unless it already failed; keeps the reason of the lowest failing seed."""
        if name in failures:
            return
        row = rows[name].changed({"seed": seed})
        if name in chosen:
            settings, trial = chosen[name]
            row = row.changed(settings)
            if seed == 0 and trial:
                row = replace(row, objects=row.objects | Objects(trial=trial))
        reason = yield row.task(f"{name}, seed {seed}", out / f"{name}-{seed}")
        if reason is not None:
            log.warning("%s is left out: %s", name, reason)
            failures[name] = min(failures.get(name, (seed, reason)), (seed, reason))

    run_jobs((one_run(name, seed) for seed in range(seeds) for name in rows), seeds * len(rows), jobs)
    return {name: failures[name][1] for name in rows if name in failures}


def _scores(runs: Mapping[str, Sequence[Run]]) -> tuple[Scores, Scores]:
    """The scores, sorted by MAP@R, and the scores of the methods' own read-outs, such as "spectral, with SC"."""
    found: Scores = {}
    read_outs: Scores = {}
    for name, each in runs.items():
        after = [run.scores["after"] for run in each]
        found[name] = {score: [one[score] for one in after] for score in COLUMNS}
        for prefix, (title, _) in method_class(each[0].settings().method).readout_columns.items():
            read_outs[f"{name}, {title}"] = {score: [one[prefix + score] for one in after] for score in COLUMNS}
    return by_falling_map_at_r(found), read_outs


def _curve(run: Run) -> list[tuple[int, float]]:
    return [(record["epoch"], record["map@r"]) for record in run.evaluations() if "map@r" in record]


def _backbone(out: Path, row: Row) -> dict[str, float]:
    settings, objects = row.settings, copied(row.objects)
    key = (settings.data, settings.model, row.splits().digest(), *backbone_digest(row).values())
    measure = partial(backbone_scores, settings, objects.get("dataset"), objects.get("backbone"))
    scores = cached(out / "backbone", key, measure)
    return {name: scores[name] for name in COLUMNS}


def _write(result: ComparisonResult, out: Path) -> None:
    from nearkin.experiments.comparison_page import comparison_page

    write_json(out / "comparison.json", vars(result))
    write_text(out / "comparison.md", result.markdown())
    write_text(out / "comparison.tex", result.latex())
    write_text(out / "comparison.html", comparison_page(result, out))
