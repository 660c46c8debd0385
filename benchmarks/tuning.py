"""Tuning with successive halving against training every trial to the end: epochs, and the settings that they find.

    python benchmarks/tuning.py --out docs/results/tuning.json

Both searches are those of `nearkin compare --tune`, with the same number of trials, the same Optuna sampler and the
same seeds; one of them has a single rung. The seed sets the sampler, the network and the validation classes. The winner
is the trial with the best MAP@R on validation classes; only then is it evaluated on the test classes. Epochs are
counted in the metrics of the trials. Needs `pip install 'nearkin[tune]'`. Finished runs in `--runs` are reused.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from provenance import made

from nearkin.experiments.comparison_plan import Row, rows_of
from nearkin.experiments.runs import attempt
from nearkin.experiments.tuning import Rung, best, epochs_of, plan, trial_run, tune
from nearkin.files import write_json
from nearkin.training import Run
from nearkin.training.objects import Objects
from nearkin.training.settings import TrainingSettings

METHODS = ("rank", "triplet", "margin", "proxy-nca")
DEFAULTS, FULL, HALVING = "defaults", "all to the end", "halving"


def tested(out: Path, name: str, number: int, row: Row, settings: Mapping[str, Any]) -> dict[str, float]:
    """MAP@R of a complete trial on validation and test classes."""
    run, objects = Run(out / f"{name}-{number}"), Objects(trial=trial_run(out, name, number))
    chosen = row.changed(dict(settings))
    reason = attempt(Row(chosen.settings, chosen.given, objects).task(run.folder.name, run.folder))
    if reason is not None:
        raise RuntimeError(reason)
    scores = run.scores
    return {"validation": scores["validation"]["best"]["map@r"], "test": scores["after"]["map@r"]}


def search(out: Path, rows: Mapping[str, Row], rungs: Sequence[Rung], jobs: int) -> dict[str, dict[str, Any]]:
    """The winner of each method; with a single rung, also the first trial, which has the defaults."""
    found: dict[str, dict[str, Any]] = {}
    for name, trials in tune(out, rows, rungs, jobs).items():
        number = best(trials, rungs)
        assert number is not None
        metrics = (trial_run(out, name, each).metrics for each in range(len(trials)))
        found[name] = {
            "epochs": sum(record["kind"] == "training" for records in metrics for record in records),
            "settings": trials[number].settings,
            **tested(out, name, number, rows[name], trials[number].settings),
            "trials": [{"settings": trial.settings, "scores": trial.scores} for trial in trials],
        }
        if len(rungs) == 1:
            found[name]["defaults"] = tested(out, name, 0, rows[name], trials[0].settings)
    return found


def table(found: Mapping[str, Sequence[Mapping[str, Any]]], seeds: Sequence[int]) -> str:
    """One line per method and seed: epochs of both searches, then MAP@R with the defaults and with what they found."""
    kinds = (DEFAULTS, FULL, HALVING)
    heads = ["method, seed", *(f"epochs, {kind}" for kind in kinds[1:])]
    heads += [f"{split}, {kind}" for split in ("validation", "test") for kind in kinds]
    lines = [heads, ["---"] * len(heads)]
    for name in found[FULL][0]:
        for seed, full, halving in zip(seeds, found[FULL], found[HALVING], strict=False):
            of = {DEFAULTS: full[name]["defaults"], FULL: full[name], HALVING: halving[name]}
            scores = [f"{of[kind][split]:.4f}" for split in ("validation", "test") for kind in kinds]
            lines.append([f"{name}, {seed}", *(str(of[kind]["epochs"]) for kind in kinds[1:]), *scores])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="glyphs:classes=120,per_class=12,size=16")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--trials", type=int, default=9)
    parser.add_argument("--epochs", type=int, default=27)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1, help="number of runs in parallel")
    parser.add_argument("--runs", type=Path, default=Path("runs/tuning"), help="folder for the runs")
    parser.add_argument("--out", type=Path, help="also write the results as JSON")
    given = parser.parse_args()
    rungs = plan(given.trials, TrainingSettings(epochs=given.epochs))
    schemes = {FULL: [Rung(given.trials, given.epochs)], HALVING: rungs}
    rows = rows_of(list(given.methods), given.data, {"epochs": given.epochs, "logger": "none"}, "fair", Objects())
    found: dict[str, list[dict[str, dict[str, Any]]]] = {kind: [] for kind in schemes}
    for done, seed in enumerate(given.seeds, start=1):
        for kind, of_kind in schemes.items():
            seeded = {name: row.changed({"seed": seed}) for name, row in rows.items()}
            out = given.runs / f"{kind.replace(' ', '-')}-{seed}"
            found[kind].append(search(out, seeded, of_kind, given.jobs))
            assert all(each["epochs"] == epochs_of(of_kind) for each in found[kind][-1].values())
        print(f"{done} of {len(given.seeds)} seeds\n{table(found, given.seeds)}\n", flush=True)
        if given.out:
            plans = {kind: [vars(rung) for rung in of_kind] for kind, of_kind in schemes.items()}
            write_json(
                given.out, {"made": made("cpu"), "data": given.data, "rungs": plans, "seeds": given.seeds, **found}
            )


if __name__ == "__main__":
    main()
