"""The methods under the conditions of their papers' claims: the runs behind docs/claims.md and docs/results.md.

    python benchmarks/claims.py cub batches --data DATA --weights FILE --jobs 10 --out docs/results/claims.json
    python benchmarks/claims.py cub --rows "rank" "margin" --seeds 3 --data DATA --weights FILE --out docs/results/claims.json

DATA and FILE are as in benchmarks/real_data.py. Every run trains EfficientNet-lite0 on all training classes and keeps
its last epoch, so nothing is chosen on the test split. Rows are added to the JSON file as soon as they are finished.

    cub        every method on CUB, with the settings that its paper's claims are about
    batches    batches that look at the space: rank, triplet, margin and Proxy-NCA on CUB, Cars and Flowers
    known      Flowers with known classes: 20 images per class for training, the others for testing
    learners   divide and conquer with 1, 2, 4 and 8 learners on CUB
    search     options of Magnet and divide and conquer, scored on training classes or images that are held out
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nearkin.experiments.pool import Job, run_jobs
from nearkin.experiments.runs import Task, provenance_of, seconds_of
from nearkin.files import atomic_path, write_json
from nearkin.training import Run
from nearkin.training.settings import make_settings

COMMON: dict[str, Any] = {
    "backbone": "tf_efficientnet_lite0",
    "dim": 512,
    "validation": 0.0,
    "keep": "last",
    "evaluate_every": 0,
    "micro_batch": 128,  # for the large batches of spectral; those of the others are smaller
    "keep_decoded": True,
}
SHOWN = ("recall@1", "map@r", "nmi_arithmetic", "soft_knn_error", "nearest_cluster_error", "classifier_error")
KNOWN_TRAIN, KNOWN_SEARCH = 20, 14  # images per class that are trained on; in a search, the rest of the 20 is held out


@dataclass(frozen=True)
class Row:
    """One row of a table: a method and its settings."""

    name: str
    method: str
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Section:
    datasets: tuple[str, ...]
    rows: tuple[Row, ...]
    settings: dict[str, Any] = field(default_factory=dict)


def batch_rows() -> Iterator[Row]:
    for method in ("rank", "triplet", "margin", "proxy-nca"):
        yield Row(method, method)
        for batches in ("neighbourhoods", "clusters"):
            yield Row(f"{method}, {batches}", method, {"batches": batches})


SECTIONS = {
    "cub": Section(("cub",), (Row("rank", "rank"), Row("margin", "margin"))),
    "batches": Section(("cub", "cars", "flowers"), tuple(batch_rows())),
}


def sources(data: Path) -> dict[str, dict[str, Any]]:
    halves = {"split": "first-half"}
    return {
        "cub": {"source": "cub200", "root": str(data)},
        "cars": {"source": str(data / "cars196_train_boxes"), **halves},
        "flowers": {"source": str(data / "flowers102"), **halves},
        "flowers-known": {"source": str(data / "flowers-known.csv")},
        "flowers-search": {"source": str(data / "flowers-search.csv")},
    }


def write_known_classes(data: Path) -> None:
    """Writes two splits of Flowers within every class: one to test, and one to search, without the test images."""
    rng = np.random.default_rng(0)
    known: list[tuple[str, str, str]] = []
    search: list[tuple[str, str, str]] = []
    for folder in sorted(path for path in (data / "flowers102").iterdir() if path.is_dir()):
        files = [f"flowers102/{folder.name}/{file.name}" for file in sorted(folder.iterdir())]
        for place, number in enumerate(rng.permutation(len(files))):
            known.append((files[number], folder.name, "train" if place < KNOWN_TRAIN else "test"))
            if place < KNOWN_TRAIN:
                search.append((files[number], folder.name, "train" if place < KNOWN_SEARCH else "test"))
    for name, rows in (("flowers-known.csv", known), ("flowers-search.csv", search)):
        with atomic_path(data / name) as partial, partial.open("w", newline="") as stream:
            csv.writer(stream).writerows([("path", "label", "split"), *sorted(rows)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="+", choices=list(SECTIONS))
    parser.add_argument("--data", type=Path, required=True, help="folder with the datasets")
    parser.add_argument("--weights", type=Path, required=True, help="ImageNet weights of tf_efficientnet_lite0")
    parser.add_argument("--rows", nargs="+", help="only these rows")
    parser.add_argument("--datasets", nargs="+", help="only these datasets")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=1, help="number of runs in parallel")
    parser.add_argument("--runs", type=Path, default=Path("runs/claims"), help="folder for the runs")
    parser.add_argument("--out", type=Path, required=True, help="JSON file that rows are added to")
    given = parser.parse_args()
    data, weights = given.data.absolute(), str(given.weights.absolute())
    if (data / "flowers102").is_dir():
        write_known_classes(data)
    jobs = [
        one_run(section, dataset, row, seed, given.epochs, data, weights, given.runs, given.out)
        for seed in given.seeds
        for section in given.sections
        for row in SECTIONS[section].rows
        for dataset in SECTIONS[section].datasets
        if (not given.rows or row.name in given.rows) and (not given.datasets or dataset in given.datasets)
    ]
    run_jobs(jobs, len(jobs), given.jobs)
    print(table(json.loads(given.out.read_text()), given.sections))


def one_run(
    section: str, dataset: str, row: Row, seed: int, epochs: int, data: Path, weights: str, runs: Path, out: Path
) -> Job:
    name = f"{section}-{dataset}-{row.name}-{epochs}-{seed}".replace(" ", "_").replace("/", "_")
    flat = COMMON | {"weights": weights, "epochs": epochs, "seed": seed} | SECTIONS[section].settings
    flat |= sources(data)[dataset] | row.settings
    run = Run(runs / name)
    reason = yield Task(name, make_settings(flat.pop("source"), row.method, flat), run.folder)
    found: dict[str, Any] = {"section": section, "dataset": dataset, "name": row.name, "seed": seed}
    if reason is None:
        scores, training = run.scores, run.settings().training
        found |= {"epochs": epochs, "batch_size": training.batch_size, "learning_rate": training.learning_rate}
        found |= {"method": row.method, "settings": row.settings, "seconds": seconds_of(run)}
        found |= {
            "backbone": shown(scores["backbone"]),
            "before": shown(scores["before"]),
            "after": shown(scores["after"]),
            "made": provenance_of([run]),
        }
    else:
        found["failed"] = reason
    add(out, found)
    print(json.dumps({name: found.get(name) for name in ("section", "dataset", "name", "seed", "after", "failed")}), flush=True)


def shown(scores: dict[str, float]) -> dict[str, float]:
    return {name: round(scores[name], 5) for name in SHOWN if name in scores}


def add(file: Path, row: dict[str, Any]) -> None:
    """Adds a row to the file, or replaces the same one."""
    rows = json.loads(file.read_text()) if file.is_file() else []
    key = ("section", "dataset", "name", "epochs", "seed")
    rows = [old for old in rows if any(old.get(name) != row.get(name) for name in key)]
    write_json(file, [*rows, row])


def table(rows: list[dict[str, Any]], sections: list[str]) -> str:
    """One line per row and dataset, the mean over the seeds, in %."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row["section"] in sections and "after" in row:
            groups.setdefault((row["section"], row["dataset"], row["name"], row["epochs"]), []).append(row)
    columns = [name for name in SHOWN if any(name in row["after"] for row in rows if "after" in row)]
    lines = [f"| section | dataset | | epochs | seeds | {' | '.join(columns)} |", "|---" * (5 + len(columns)) + "|"]
    for key, each in groups.items():
        values = [[row["after"].get(name, np.nan) for row in each] for name in columns]
        cells = ["" if np.isnan(value).all() else f"{100 * np.mean(value):.1f}" for value in values]
        lines.append(f"| {' | '.join(map(str, key))} | {len(each)} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
