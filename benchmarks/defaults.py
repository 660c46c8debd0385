"""The default learning rates of `nearkin train` on a pretrained backbone: how they were found, and their scores.

    python benchmarks/defaults.py search --kind head --data DATA --weights FILE --jobs 12 --out head.json
    python benchmarks/defaults.py search --kind finetune --data DATA --weights FILE --jobs 12 --out finetune.json
    python benchmarks/defaults.py check --kind head --data DATA --weights FILE --jobs 12 --out checked.json

DATA and FILE are as in benchmarks/real_data.py. `search` trains every method with every rate and scores it by the best
MAP@R on a quarter of the *training* classes; it never uses the test classes. `check` trains with the defaults and
evaluates on the test classes. `--kind head` trains the head on frozen features; `--kind finetune` trains everything,
with a tenth of the rate for the backbone. Finished runs in `--runs` are reused.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from provenance import command

from nearkin.errors import UserError
from nearkin.experiments.pool import Job, run_jobs
from nearkin.experiments.runs import Task, provenance_of
from nearkin.fields import parse_assignment
from nearkin.files import write_json
from nearkin.methods import known_methods
from nearkin.training import Run
from nearkin.training.settings import make_settings

METHODS = [method.name for method in known_methods() if method.in_all]
KINDS: dict[str, dict[str, Any]] = {
    "head": {"freeze_backbone": True},
    "finetune": {"keep_decoded": True, "micro_batch": 128},  # for speed, and for spectral's large batches
}
Key = tuple[str, str, float, int]  # dataset, method, learning rate (0: the default) and seed


def sources(data: Path) -> dict[str, dict[str, Any]]:
    halves = {"split": "first-half"}
    return {
        "cub": {"source": "cub200", "root": str(data)},
        "cars": {"source": str(data / "cars196_train_boxes"), **halves},
        "flowers": {"source": str(data / "flowers102"), **halves},
    }


def job(name: str, method: str, settings: dict[str, Any], folder: Path, tested: bool) -> Job:
    reason = yield Task(name, make_settings(settings.pop("source"), method, settings), folder, tested)
    if reason is not None:
        raise UserError(f"{name}: {reason}")


def scores_of(key: Key, run: Run) -> dict[str, Any]:
    """The published scores of a run: on the test classes if it was tested, else on the validation classes."""
    scores, training = run.scores, run.settings().training
    tested = bool(scores["after"])
    columns = ("backbone", "before", "after") if tested else ("backbone", "before", "best")
    found = scores if tested else scores["validation"]
    return {
        **dict(zip(("dataset", "method", "rate", "seed"), key, strict=True)),
        "measured_on": "test" if tested else "validation",
        **{name: {score: found[name][score] for score in ("recall@1", "map@r")} for name in columns},
        "best_epoch": scores["best_epoch"],
        "epochs": training.epochs,
        "learning_rate": training.learning_rate,
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """One line per method and rate: Recall@1 and MAP@R of the backbone and of the kept model, in %."""
    lines = ["| dataset | method | rate | seed | Recall@1 | MAP@R | epoch |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        last = row.get("after") or row["best"]
        arrows = (f"{100 * row['backbone'][score]:.1f} → {100 * last[score]:.1f}" for score in ("recall@1", "map@r"))
        cells = (row["dataset"], row["method"], f"{row['learning_rate']:g}", row["seed"], *arrows)
        lines.append(f"| {' | '.join(map(str, cells))} | {row['best_epoch']} of {row['epochs']} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["search", "check"])
    parser.add_argument("--kind", choices=list(KINDS), required=True)
    parser.add_argument("--data", type=Path, required=True, help="folder with the datasets")
    parser.add_argument("--weights", type=Path, required=True, help="ImageNet weights of tf_efficientnet_lite0")
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-4, 3e-4, 1e-3], help="learning rates to search")
    parser.add_argument("--datasets", nargs="+", choices=list(sources(Path())), default=list(sources(Path())))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="other settings for all runs")
    parser.add_argument("--jobs", type=int, default=1, help="number of runs in parallel")
    parser.add_argument("--runs", type=Path, default=Path("runs/defaults"), help="folder for the runs")
    parser.add_argument("--out", type=Path, help="also write the results as JSON")
    given = parser.parse_args()
    checks = given.task == "check"
    keys: list[Key] = [
        (dataset, method, rate, seed)
        for method in given.methods
        for dataset in given.datasets
        for rate in ([0.0] if checks else given.rates)
        for seed in range(given.seeds)
    ]
    common = {"backbone": "tf_efficientnet_lite0", "weights": str(given.weights.absolute()), **KINDS[given.kind]}
    common |= ({} if checks else {"validation": 0.25}) | dict(map(parse_assignment, given.set))
    data = sources(given.data.absolute())
    runs = {key: Run(given.runs / f"{given.task}-{given.kind}-{'-'.join(map(str, key))}") for key in keys}

    def one_run(key: Key) -> Job:
        dataset, method, rate, seed = key
        settings = common | data[dataset] | {"learning_rate": rate, "seed": seed}
        return job(runs[key].folder.name, method, settings, runs[key].folder, checks)

    run_jobs(map(one_run, keys), len(keys), given.jobs)
    rows = [scores_of(key, run) for key, run in runs.items()]
    print(table(rows), flush=True)
    if given.out:
        write_json(given.out, {"made": provenance_of(runs.values()), "command": command(), "rows": rows})


if __name__ == "__main__":
    main()
