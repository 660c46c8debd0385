"""Several methods on the same data, with the same epochs and seeds: one table, nothing trained twice.

Two protocols. ``fair``: the model is chosen on classes held out of the training classes, other ones for each of four
consecutive seeds; nothing is chosen on the test split. ``paper``: trained on all training classes, the best point of
the curve on the test split is reported, as the papers did; its numbers are optimistic, and labelled so.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nearkin.errors import UserError
from nearkin.experiments.comparison_plan import (
    PROTOCOLS,
    check_request,
    check_same_data,
    check_same_settings,
    command_of,
    methods_by_name,
    settings_of,
    with_settings,
)
from nearkin.experiments.comparison_result import COLUMNS, ComparisonResult, by_falling_map_at_r
from nearkin.experiments.concatenation import concatenated_scores
from nearkin.experiments.pool import Job, run_jobs
from nearkin.experiments.runs import Task, cached, provenance_of, seconds_of
from nearkin.files import write_json, write_text
from nearkin.messages import show_messages
from nearkin.methods import Method, method_class
from nearkin.training import Run, Settings
from nearkin.training.baseline import backbone_scores
from nearkin.training.defaults import resolved
from nearkin.training.prepare import absolute, load_splits

log = logging.getLogger("nearkin")
Scores = dict[str, dict[str, list[float]]]  # by method and score, one number for each seed


def usual_folder(data: str) -> Path:
    """Where a comparison is kept unless the user says otherwise.

    >>> usual_folder("glyphs:classes=40")
    PosixPath('runs/compare-glyphs')
    """
    return Path("runs") / f"compare-{Path(data.partition(':')[0]).stem or 'data'}"


def compare(
    data: str | Path,
    methods: str | Sequence[str | Method] = "all",
    seeds: int = 3,
    protocol: str = "fair",
    jobs: int = 1,
    tune: int = 0,
    concatenate: bool = False,
    out: str | Path | None = None,
    **settings: Any,
) -> ComparisonResult:
    """Trains every method with seeds 0, 1, … and measures it; what ``out`` already holds is not trained again.

    Args:
        data: what `nearkin.train` takes as a path or a name.
        methods: names, as a list or with commas between, or objects such as ``nearkin.methods.Magnet(alpha=2.0)``;
            "all" for all that nearkin has.
        seeds: runs of every method.
        protocol: "fair" or "paper".
        jobs: worker processes, with the same results as one; a script that asks for several must call this under
            ``if __name__ == "__main__":``.
        tune: trials that each method gets to find its learning rate and its own settings, judged on validation
            classes with seed 0; 0: the settings as they are.
        concatenate: also measure the models of each method's seeds together.
        out: a folder with one run for each method and seed, and the table as HTML, JSON, Markdown and LaTeX; by
            default ``runs/compare-<data>``.
        settings: the same for all methods; one that only some of them have is for these. Batches are of each method's
            usual size unless ``batch_size`` is given.

    >>> compare("glyphs", ["rank", "triplet"], out="runs/two", epochs=5)  # doctest: +SKIP
    """
    show_messages()
    check_request(data, seeds, protocol, settings, jobs, tune, concatenate)
    own = methods_by_name(methods)
    source = str(data)
    out = Path(out or usual_folder(source))
    shared = {"patience": 0} | settings | PROTOCOLS[protocol]
    if "epochs" not in settings:  # by the data alone, so that all methods see as much
        first = settings_of(next(iter(own)), own, absolute(source), shared)
        shared["epochs"] = resolved(first, load_splits(first.data, 0), first.make_method()).training.epochs
    wanted = {name: settings_of(name, own, absolute(source), shared) for name in own}
    check_same_settings(out, protocol, wanted, tune)
    check_same_data(out, wanted, seeds)

    given = {name: {*settings, *own[name]} for name in own}
    refused, chosen = _tuned(out, wanted, given, tune, jobs) if tune else ({}, {})
    refused |= _trained(out, {name: wanted[name] for name in own if name not in refused}, chosen, seeds, jobs)
    if len(refused) == len(own):
        raise UserError(next(iter(refused.values())))
    # A method that failed with one seed is not judged by the others: they would be its lucky ones.
    runs = {name: [Run(out / f"{name}-{seed}") for seed in range(seeds)] for name in own if name not in refused}
    scores, read_outs = _scores(runs)
    result = ComparisonResult(
        protocol,
        scores,
        refused,
        chosen={name: chosen[name] for name in scores if name in chosen},
        trials=tune,
        concatenated={f"{name}, {seeds} models": concatenated_scores(out, name, seeds) for name in scores}
        if concatenate
        else {},
        seconds={name: [seconds_of(run) for run in runs[name]] for name in scores},
        curves={name: [_curve(run) for run in runs[name]] for name in scores},
        backbone=_backbone(out, next(iter(wanted.values()))),
        made=provenance_of(run for name in scores for run in runs[name]),
        read_outs=read_outs,
        command=command_of(source, methods, own, seeds, protocol, settings, tune, concatenate, out),
    )
    _write(result, out)
    return result


def _tuned(
    out: Path, wanted: Mapping[str, Settings], given: Mapping[str, set[str]], trials: int, jobs: int
) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """Why methods were refused whatever was tried, and the chosen settings of the others."""
    from nearkin.experiments.tuning import best, tune

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


def _trained(
    out: Path, wanted: Mapping[str, Settings], chosen: Mapping[str, dict[str, Any]], seeds: int, jobs: int
) -> dict[str, str]:
    """Runs every method with every seed; returns why methods were refused."""
    failures: dict[str, tuple[int, str]] = {}

    def one_run(name: str, seed: int) -> Job:
        """The run of a method with one seed, unless the method has failed; notes the lowest seed that fails."""
        if name in failures:
            return
        settings = with_settings(wanted[name], chosen.get(name, {}) | {"seed": seed})
        reason = yield Task(f"{name}, seed {seed}", settings, out / f"{name}-{seed}")
        if reason is not None:
            log.warning("%s is left out: %s", name, reason)
            failures[name] = min(failures.get(name, (seed, reason)), (seed, reason))

    run_jobs((one_run(name, seed) for seed in range(seeds) for name in wanted), seeds * len(wanted), jobs)
    return {name: failures[name][1] for name in wanted if name in failures}


def _scores(runs: Mapping[str, Sequence[Run]]) -> tuple[Scores, Scores]:
    """The scores by falling MAP@R; and those that methods read out in a way of their own, "spectral, with SC"."""
    found: Scores = {}
    read_outs: Scores = {}
    for name, each in runs.items():
        after = [run.scores["after"] for run in each]
        found[name] = {score: [one[score] for one in after] for score in COLUMNS}
        for prefix, (title, _) in method_class(name).readout_columns.items():
            read_outs[f"{name}, {title}"] = {score: [one[prefix + score] for one in after] for score in COLUMNS}
    return by_falling_map_at_r(found), read_outs


def _curve(run: Run) -> list[tuple[int, float]]:
    return [(record["epoch"], record["map@r"]) for record in run.evaluations() if "map@r" in record]


def _backbone(out: Path, settings: Settings) -> dict[str, float]:
    key = (settings.data, settings.model, load_splits(settings.data, seed=0).digest())
    scores = cached(out / "backbone", key, lambda: backbone_scores(settings))
    return {name: scores[name] for name in COLUMNS}


def _write(result: ComparisonResult, out: Path) -> None:
    from nearkin.experiments.comparison_page import comparison_page

    write_json(out / "comparison.json", vars(result))
    write_text(out / "comparison.md", result.markdown())
    write_text(out / "comparison.tex", result.latex())
    write_text(out / "comparison.html", comparison_page(result, out))
