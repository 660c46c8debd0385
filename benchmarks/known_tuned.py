"""Known classes with equal tuning: Magnet, softmax and other methods on Flowers, as in Table 4 of the Magnet paper.

    python benchmarks/known_tuned.py --data DATA --weights FILE --jobs 2

DATA and FILE are as in benchmarks/real_data.py. Heads on frozen features, with the split, the batches and the number of
epochs of the section "known" in benchmarks/claims.py. Every row gets the same number of trials: its defaults, and what
Optuna's TPE proposes for the learning rate and the ranges of its method. A trial is scored by its error on ten images
per class that are in neither split, each method read as its paper reads it. The best settings are then trained with
three seeds. Finished runs in `--runs` are reused; delete those of a row after changing its settings. Writes
docs/results/known-tuned.json and prints the table.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from claims import COMMON, ERRORS, HEAD, SECTIONS, shown, write_known_flowers
from methods import DOCS, markdown
from provenance import command

from nearkin.experiments.comparison_plan import Row
from nearkin.experiments.pool import Job, run_jobs
from nearkin.experiments.runs import Task, provenance_of
from nearkin.experiments.tuning import study_of
from nearkin.files import write_json
from nearkin.training import Run
from nearkin.training.settings import make_settings

ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax": ("softmax", {}),
    "triplet": ("triplet", {}),
    "rank": ("rank", {}),
    "margin": ("margin", {}),
    "magnet": ("magnet", {}),
    "magnet, wide": ("magnet", {"variance": "none", "candidates": "index"}),
}
PLAN = SECTIONS["known"]
SHARED = COMMON | PLAN.settings | HEAD | PLAN.head | {"epochs": PLAN.epochs, "evaluate_every": 0}


def error(scores: dict[str, float]) -> float:
    """The error as the method's paper reads it."""
    return next(scores[name] for name in ERRORS if name in scores)


def tuned(name: str, options: argparse.Namespace, found: dict[str, Any]) -> Job:
    """Searches the settings of a row and trains the best ones with every seed."""
    method, given = ROWS[name]
    flat = SHARED | {"weights": str(options.weights)} | given
    test_set, to_choose = (str(options.data / f"{file}.csv") for file in ("flowers-known", "flowers-known-to-choose"))
    row = Row(make_settings(to_choose, method, flat), given, {})
    study, distributions = study_of(row)
    for number in range(options.trials):
        proposed = study.ask(distributions)
        run = Run(options.runs / f"{name}-trial-{number}".replace(" ", "_"))
        refused = yield Task(run.folder.name, row.changed(proposed.params).settings, run.folder)
        if refused and run.scores_file.is_file():  # of other settings
            raise SystemExit(refused)
        score = 1.0 if refused else error(run.scores["after"])
        study.tell(proposed, 1.0 - score)
        found["trials"].setdefault(name, []).append({"settings": proposed.params, "error": score, "refused": refused})
        print(f"{run.folder.name}: {refused or f'{score:.4f}'} {proposed.params}", flush=True)
    best = row.changed(study.best_params)
    for seed in options.seeds:
        run = Run(options.runs / f"{name}-best-{study.best_trial.number}-{seed}".replace(" ", "_"))
        settings = best.settings.changed(data={"source": test_set}, training={"seed": seed})
        if refused := (yield Task(run.folder.name, settings, run.folder)):
            raise SystemExit(f"{run.folder.name}: {refused}")
        scores = shown(run.scores["after"])
        found["rows"].setdefault(name, []).append({"error": error(run.scores["after"]), **scores})
        print(f"{run.folder.name}: {scores}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with flowers102")
    parser.add_argument("--weights", type=Path, required=True, help="ImageNet weights of tf_efficientnet_lite0")
    parser.add_argument("--trials", type=int, default=15)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1, help="number of runs in parallel")
    parser.add_argument("--runs", type=Path, default=Path("runs/known-tuned"), help="folder for the runs")
    parser.add_argument("--out", type=Path, default=DOCS / "results" / "known-tuned.json")
    options = parser.parse_args()
    options.data, options.weights = options.data.absolute(), options.weights.absolute()
    write_known_flowers(options.data)
    found: dict[str, Any] = {"rows": {}, "trials": {}}
    run_jobs(
        (tuned(name, options, found) for name in ROWS), len(ROWS) * (options.trials + len(options.seeds)), options.jobs
    )
    found = {part: {name: found[part][name] for name in ROWS} for part in found}  # in the order of the rows
    runs = [run for run in map(Run, sorted(options.runs.iterdir())) if run.scores_file.is_file()]
    write_json(options.out, {"command": command(), "made": provenance_of(runs)} | found)
    columns = {name: sorted({score for each in of for score in each}) for name, of in found["rows"].items()}
    rows = {
        name: {score: [each[score] for each in of] for score in columns[name]} for name, of in found["rows"].items()
    }
    print(markdown("Flowers, known classes, a tuned head", rows))
    for name, tried in found["trials"].items():
        first, best = tried[0]["error"], min(tried, key=lambda trial: trial["error"])
        print(f"{name}: {first:.4f} with the defaults, {best['error']:.4f} with {best['settings']}")


if __name__ == "__main__":
    main()
