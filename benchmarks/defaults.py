"""Which learning rate suits each method on a pretrained backbone: how the defaults of `nearkin train` were found.

    python benchmarks/defaults.py --data DATA --weights FILE --jobs 12 --kind head --out head.json
    python benchmarks/defaults.py --data DATA --weights FILE --jobs 12 --kind finetune --out finetune.json

DATA and FILE as for benchmarks/real_data.py. Every method is trained with every rate on every dataset, and judged by
the best MAP@R on a quarter of the *training* classes; the test classes are never looked at. `head` trains the head
alone on frozen features, `finetune` everything, with a tenth of the rate for the backbone. Finished runs in `--runs`
are never repeated. The table shows by how much MAP@R on the validation classes rises above the backbone's own.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from nearkin.api import make_settings
from nearkin.compare.jobs import Lane, run_lanes
from nearkin.compare.task import Task
from nearkin.files import write_json
from nearkin.methods import known_methods
from nearkin.training import Run

METHODS = [method.name for method in known_methods() if method.name != "pml"]
KINDS: dict[str, dict[str, Any]] = {
    "head": {"freeze_backbone": True},
    "finetune": {"keep_decoded": True, "micro_batch": 128},
}


def sources(data: Path) -> dict[str, dict[str, Any]]:
    halves = {"split": "first-half"}
    return {
        "cub": {"source": "cub200", "root": str(data)},
        "cars": {"source": str(data / "cars196_train_boxes"), **halves},
        "flowers": {"source": str(data / "flowers102"), **halves},
    }


def lane(method: str, settings: dict[str, Any], folder: Path) -> Lane:
    reason = yield Task(folder.name, make_settings(settings.pop("source"), method, settings), folder, tested=False)
    if reason is not None:
        print(f"{folder.name}: {reason}", flush=True)


def outcome(folder: Path) -> dict[str, float] | None:
    run = Run(folder)
    if not run.scores.is_file():
        return None
    scores = run.read_scores()
    found = {name: scores["validation"][name]["map@r"] for name in ("backbone", "before", "best", "last")}
    return found | {"best_epoch": scores["best_epoch"], "epochs": run.settings().training.epochs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="where the datasets are")
    parser.add_argument("--weights", type=Path, required=True, help="ImageNet weights of tf_efficientnet_lite0")
    parser.add_argument("--kind", choices=list(KINDS), required=True)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-4, 3e-4, 1e-3])
    parser.add_argument("--datasets", nargs="+", choices=["cub", "cars", "flowers"], default=["cub", "cars", "flowers"])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="further settings, for all runs")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--runs", type=Path, default=Path("runs/defaults"), help="where the runs are kept")
    parser.add_argument("--out", type=Path, help="also write the figures as JSON")
    arguments = parser.parse_args()
    given = {name: json.loads(value) for name, value in (each.split("=") for each in arguments.set)}
    common = {"backbone": "tf_efficientnet_lite0", "weights": str(arguments.weights.absolute()), "validation": 0.25}
    folders = {
        (dataset, method, rate): arguments.runs / f"{arguments.kind}-{dataset}-{method}-{rate:g}"
        for dataset in arguments.datasets
        for method in arguments.methods
        for rate in arguments.rates
    }
    data = sources(arguments.data.absolute())
    lanes = (
        lane(method, common | data[dataset] | KINDS[arguments.kind] | given | {"learning_rate": rate}, folder)
        for (dataset, method, rate), folder in folders.items()
    )
    run_lanes(lanes, len(folders), arguments.jobs)
    found = {key: outcome(folder) for key, folder in folders.items()}
    print("| gain in MAP@R, points (best epoch) | " + " | ".join(f"{d} {r:g}" for d, _, r in _columns(folders)) + " |")
    for method in arguments.methods:
        cells = (_cell(found[dataset, method, rate]) for dataset, _, rate in _columns(folders))
        print(f"| {method} | " + " | ".join(cells) + " |", flush=True)
    if arguments.out:
        rows = [dict(zip(("dataset", "method", "rate"), key, strict=True)) | (one or {}) for key, one in found.items()]
        write_json(arguments.out, rows)


def _columns(keys: Any) -> list[tuple[str, str, float]]:
    return list({(dataset, rate): (dataset, method, rate) for dataset, method, rate in keys}.values())


def _cell(one: dict[str, float] | None) -> str:
    if one is None:
        return "–"
    gain, start = (100 * (one[name] - one["backbone"]) for name in ("best", "before"))
    return f"{start:+.1f} {gain:+.1f} ({one['best_epoch']:.0f}/{one['epochs']:.0f})"


if __name__ == "__main__":
    main()
