"""The methods under the conditions of their papers' claims: the runs behind docs/claims.md and docs/results.md.

    python benchmarks/claims.py cub known --data DATA --weights FILE --jobs 12 --out claims.json
    python benchmarks/claims.py cub --rows rank margin --seeds 0 1 2 --data DATA --weights FILE --out claims.json

DATA and FILE are as in benchmarks/real_data.py. Every run trains EfficientNet-lite0 on all training classes and keeps
its last epoch, so nothing is chosen on the test split. Rows are added to the JSON file as soon as they are finished.
Stopped runs in `--runs` are continued. The number of epochs is that of the section, unless `--epochs` is given.

    cub          the methods, and batches that look at the space, on CUB
    known        Flowers with known classes: 20 images per class for training, 5,129 others for testing
    options      the same, tested on ten other images per class: Magnet's options, and a head's optimiser; with --head
    learners     divide and conquer on CUB, 80 epochs: 1, 2, 4 and 8 learners
    partitions   the same with 4 learners and other partitions, or one embedding for all
    facilities   facility location on CUB, d = 64: ratios of classes to items, and embeddings without unit length
    halves       batches that look at the space on Cars and Flowers
    species      all species of CUB, new images: do neighbours share a family (the last word of a species' name)?
    pairs        the same, trained on random pairs of species and evaluated on single ones

All but `cub` train on images of 160 pixels. Delete the runs of a row after changing its settings.
The curves of `learners` and `known` are drawn into docs/images/ if `--draw` is given.
`--head` trains only a head on frozen features of images of 224 pixels, in minutes without a GPU. In `known`,
`species` and `pairs`, all heads then have one learning rate. Its rows are those of the section "known-head", and so on.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from defaults import sources
from methods import draw
from provenance import made

import nearkin
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
HEAD: dict[str, Any] = {"freeze_backbone": True, "keep_decoded": False, "micro_batch": 0, "image_size": 0}
ERRORS = ("nearest_cluster_error", "classifier_error", "soft_knn_error")  # as papers read Magnet, softmax and others
SHOWN = ("recall@1", "map@r", "nmi_arithmetic", *ERRORS)
KNOWN_TRAIN, KNOWN_SEARCH = 20, 10  # images per class that are trained on, and that options were chosen on


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
    epochs: int
    settings: dict[str, Any] = field(default_factory=dict)
    head: dict[str, Any] = field(default_factory=dict)  # other settings if only a head is trained
    attributes: bool = False


def batch_rows() -> Iterator[Row]:
    for method in ("rank", "triplet", "margin", "proxy-nca"):
        yield Row(method, method)
        for batches in ("neighbourhoods", "clusters"):
            yield Row(f"{method}, {batches}", method, {"batches": batches})


# Magnet's loss with a fixed variance, impostors from the whole index and a wide margin; found on a validation split of
# Flowers with known classes, with a head on frozen features.
WIDE: dict[str, Any] = {"clusters": 1, "variance": "none", "scaling": 20.0, "alpha": 8.0, "candidates": "index"}
# The paper's loss without a global scaling, and with the one that tuning on validation classes of Flowers found.
UNSCALED: dict[str, Any] = {"clusters": 1, "scaling": 1.0, "alpha": 1.0}
SCALED: dict[str, Any] = {"clusters": 1, "scaling": 15.0, "alpha": 8.0}
# What the section "options" found best for a head.
THREE: dict[str, Any] = SCALED | {"hinge": "soft", "candidates": "index", "weight_decay": 0.1}
SLOW: dict[str, Any] = {"learning_rate": 1e-4}  # Magnet's default when its rows without a rate were measured
DIVIDE = "divide-and-conquer"
CUB = (
    Row("rank", "rank"),
    Row("margin", "margin"),
    Row("divide-and-conquer around margin", DIVIDE),
    Row("divide-and-conquer around rank", DIVIDE, {"wraps": "rank"}),
    Row("divide-and-conquer around triplet", DIVIDE, {"wraps": "triplet"}),
    Row("divide-and-conquer around proxy-nca", DIVIDE, {"wraps": "proxy-nca"}),
    Row("divide-and-conquer, 2 learners", DIVIDE, {"learners": 2}),
    Row("divide-and-conquer, joint quarter", DIVIDE, {"finetune": 0.25, "finetune_rate_factor": 0.3}),
    Row("divide-and-conquer, joint half", DIVIDE, {"finetune": 0.5, "finetune_rate_factor": 1.0}),
    Row("spectral", "spectral"),
    Row("spectral, rate 1.6e-3", "spectral", {"learning_rate": 1.6e-3}),
    Row("spectral, d = 100", "spectral", {"dim": 100}),
    Row("facility-location", "facility-location"),
    Row("facility-location, d = 64", "facility-location", {"dim": 64}),
    Row("rank, d = 64", "rank", {"dim": 64}),
    Row("triplet, d = 64", "triplet", {"dim": 64}),
    Row("margin, d = 64", "margin", {"dim": 64}),
    Row("lifted, d = 64", "lifted", {"dim": 64}),
    Row("npairs, d = 64", "npairs", {"dim": 64}),
    Row("magnet", "magnet"),
    Row("magnet, refreshed every epoch", "magnet", {"refresh_epochs": 1}),
    Row("magnet, wide", "magnet", WIDE | SLOW),
    Row("magnet, wide, batches of 128", "magnet", WIDE | SLOW | {"batch_size": 128}),
    Row("magnet, wide, rate 3e-4", "magnet", WIDE | {"learning_rate": 3e-4}),
    *(row for row in batch_rows() if row.name not in ("rank", "margin")),
    Row("softmax", "softmax"),
    Row("lifted", "lifted"),
    Row("npairs", "npairs"),
    Row("multi-similarity (PML)", "pml", {"loss_name": "MultiSimilarityLoss"}),
    Row("Proxy-Anchor (PML)", "pml", {"loss_name": "ProxyAnchorLoss", "loss_learning_rate": 4e-2}),
)
KNOWN = (
    Row("softmax", "softmax"),
    Row("triplet", "triplet"),
    Row("rank", "rank"),
    Row("margin", "margin"),
    Row("magnet, unscaled", "magnet", UNSCALED | SLOW),
    Row("magnet, Table 1", "magnet", {"clusters": 1, "alpha": 2.43, "scaling": 14.2} | SLOW),  # the paper's for Flowers
    Row("magnet, scaled", "magnet", SCALED | SLOW),
    Row("magnet, scaled, three options", "magnet", THREE | SLOW),
    Row("magnet, wide", "magnet", WIDE | SLOW),
    Row("magnet, wide, soft hinge", "magnet", WIDE | SLOW | {"hinge": "soft"}),
    Row("magnet, wide, batch only", "magnet", WIDE | SLOW | {"candidates": "batch"}),
    Row("magnet, wide, α = 16, scaling 40", "magnet", WIDE | SLOW | {"alpha": 16.0, "scaling": 40.0}),
    Row("magnet, unscaled, rate 3e-4", "magnet", UNSCALED | {"learning_rate": 3e-4}),
    Row("magnet, scaled, rate 3e-4", "magnet", SCALED | {"learning_rate": 3e-4}),
    Row("magnet, wide, rate 3e-4", "magnet", WIDE | {"learning_rate": 3e-4}),
    Row("magnet, wide, soft hinge, rate 3e-4", "magnet", WIDE | {"hinge": "soft", "learning_rate": 3e-4}),
)
DRAWN = ("softmax", "triplet", "rank", *(f"magnet, {form}, rate 3e-4" for form in ("unscaled", "scaled", "wide")))
LEARNERS = tuple(Row(f"K = {learners}", DIVIDE, {"learners": learners}) for learners in (1, 2, 4, 8))
PARTITIONS = (
    *(
        Row(f"K = 4, {partition}", DIVIDE, {"learners": 4, "partition": partition})
        for partition in ("random", "labels")
    ),
    Row("K = 4, one embedding", DIVIDE, {"learners": 4, "split_embedding": False}),
)
FACILITIES = (
    *(Row(f"class ratio {ratio}", "facility-location", {"class_ratio": ratio}) for ratio in (0.25, 0.5, 0.75)),
    Row("not normalised", "facility-location", {"normalize": "never"}),
)
HIDDEN = (  # rows that search for what the labels do not name; a pair of species needs two clusters
    Row("softmax", "softmax"),
    Row("triplet", "triplet"),
    Row("magnet, unscaled", "magnet", UNSCALED | {"clusters": 2}),
    Row("magnet, scaled", "magnet", SCALED | {"clusters": 2}),
    Row("magnet, wide", "magnet", WIDE | {"clusters": 2}),
)
# Magnet's options one at a time, then the best of them together. SGD has the rate of the paper's Table 1 for Flowers.
SGD: dict[str, Any] = {"optimizer": "sgd", "learning_rate": 0.024, "schedule": "constant", "weight_decay": 0.0}
OPTIONS = (
    Row("triplet", "triplet"),
    Row("triplet, weight decay 0.1", "triplet", {"weight_decay": 0.1}),
    Row("softmax", "softmax"),
    *(
        Row(f"magnet, {name}", "magnet", SCALED | changes)
        for name, changes in {
            "one cluster": {},
            "two clusters": {"clusters": 2},
            "four clusters": {"clusters": 4},
            "soft hinge": {"hinge": "soft"},
            "impostors from the index": {"candidates": "index"},
            "growing α": {"active_share": 0.25},
            "weight decay 0.1": {"weight_decay": 0.1},
            "weight decay 1": {"weight_decay": 1.0},
            "SGD": SGD,
            "SGD, Table 1": SGD | {"alpha": 2.43, "scaling": 14.2},
            "soft hinge, index": {"hinge": "soft", "candidates": "index"},
            "soft hinge, weight decay 0.1": {"hinge": "soft", "weight_decay": 0.1},
            "index, weight decay 0.1": {"candidates": "index", "weight_decay": 0.1},
            "soft hinge, index, weight decay 0.1": THREE,
        }.items()
    ),
)
SMALL: dict[str, Any] = {"image_size": 160}
CURVE = {"evaluate_every": 8}
SECTIONS = {
    "cub": Section(("cub",), CUB, 16),
    "known": Section(
        ("flowers-known",), KNOWN, 40, SMALL | {"batch_size": 48, "evaluate_every": 5}, {"learning_rate": 1e-3}
    ),
    "options": Section(("flowers-known-to-choose",), OPTIONS, 40, {"batch_size": 48, "learning_rate": 1e-3}),
    "learners": Section(("cub",), LEARNERS, 80, SMALL | CURVE),
    "partitions": Section(("cub",), PARTITIONS, 80, SMALL | CURVE),
    "facilities": Section(("cub",), FACILITIES, 16, SMALL | {"dim": 64}),
    "halves": Section(("cars", "flowers"), tuple(batch_rows()), 20, SMALL),
    "species": Section(("cub-known",), HIDDEN, 20, SMALL, {"learning_rate": 1e-3}, attributes=True),
    "pairs": Section(
        ("cub-known",), HIDDEN, 20, SMALL | {"collapse_pairs": True}, {"learning_rate": 1e-3}, attributes=True
    ),
}


def write_known_flowers(data: Path) -> None:
    """Writes a split of Flowers within every class, and one whose test images are those that options are chosen on."""
    rng = np.random.default_rng(0)
    rows = {name: [("path", "label", "split")] for name in ("flowers-known", "flowers-known-to-choose")}
    for folder in sorted(path for path in (data / "flowers102").iterdir() if path.is_dir()):
        files = [f"flowers102/{folder.name}/{file.name}" for file in sorted(folder.iterdir())]
        train, to_choose, test = np.split(rng.permutation(len(files)), [KNOWN_TRAIN, KNOWN_TRAIN + KNOWN_SEARCH])
        for of, new in zip(rows.values(), (test, to_choose), strict=True):
            of += [(files[number], folder.name, "train") for number in train]
            of += [(files[number], folder.name, "test") for number in new]
    for name, of in rows.items():
        write_table(data / f"{name}.csv", of)


def write_known_birds(data: Path) -> None:
    """Writes the classification split of CUB, with the family of every species."""
    folder = data / "CUB_200_2011"
    lines = ((folder / name).read_text().split() for name in ("images.txt", "train_test_split.txt"))
    images, in_train = (dict(zip(words[::2], words[1::2], strict=True)) for words in lines)
    rows = [("path", "label", "split", "family")]
    for number, path in images.items():
        species = path.partition("/")[0]
        split = "train" if in_train[number] == "1" else "test"
        rows.append((f"CUB_200_2011/images/{path}", species, split, species.rpartition("_")[2]))
    write_table(data / "cub-known.csv", rows)


def write_table(file: Path, rows: Sequence[Sequence[str]]) -> None:
    with atomic_path(file) as partial, partial.open("w", newline="") as stream:
        csv.writer(stream).writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="+", choices=list(SECTIONS))
    parser.add_argument("--data", type=Path, required=True, help="folder with the datasets")
    parser.add_argument("--weights", type=Path, required=True, help="ImageNet weights of tf_efficientnet_lite0")
    parser.add_argument("--rows", nargs="+", help="only these rows")
    parser.add_argument("--datasets", nargs="+", help="only these datasets")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--head", action="store_true", help="train only a head on frozen features")
    parser.add_argument("--epochs", type=int, help="instead of those of the section")
    parser.add_argument("--jobs", type=int, default=1, help="number of runs in parallel")
    parser.add_argument("--draw", action="store_true", help="draw the curves into docs/images/")
    parser.add_argument("--runs", type=Path, default=Path("runs/claims"), help="folder for the runs")
    parser.add_argument("--out", type=Path, required=True, help="JSON file that rows are added to")
    given = parser.parse_args()
    if "options" in given.sections and not given.head:
        parser.error("the section options is only for heads; add --head")
    given.data, given.weights = given.data.absolute(), given.weights.absolute()
    if (given.data / "flowers102").is_dir():
        write_known_flowers(given.data)
    if (given.data / "CUB_200_2011").is_dir():
        write_known_birds(given.data)
    known = {row.name for section in given.sections for row in rows_of(section, given.head)}
    if unknown := set(given.rows or ()) - known:
        parser.error(f"unknown rows {', '.join(sorted(unknown))}; known: {'; '.join(sorted(known))}")
    jobs = [
        one_run(section, dataset, row, seed, given)
        for seed in given.seeds
        for section in given.sections
        for row in rows_of(section, given.head)
        for dataset in SECTIONS[section].datasets
        if (not given.rows or row.name in given.rows) and (not given.datasets or dataset in given.datasets)
    ]
    run_jobs(jobs, len(jobs), given.jobs)
    shown_sections = [f"{section}-head" if given.head else section for section in given.sections]
    rows = json.loads(given.out.read_text())["rows"]
    print(table(rows, shown_sections))
    if given.draw and "learners" in given.sections:
        draw("learners-cub", curves(rows, "learners", "recall@1"), "Recall@1 on unseen classes", (0.4, 0.6))
    if given.draw and "known" in given.sections:
        known = curves(rows, "known", *ERRORS)
        draw(
            "known-flowers", {name: known[name] for name in DRAWN if name in known}, "error on new images", (0.08, 0.3)
        )


def rows_of(section: str, head: bool) -> Sequence[Row]:
    """If all heads of a section have one learning rate: of rows that differ only in theirs, the first."""
    plan = SECTIONS[section]
    if not head or "learning_rate" not in plan.head:
        return plan.rows
    plain: dict[str, Row] = {}
    for row in plan.rows:
        settings = {name: value for name, value in row.settings.items() if name != "learning_rate"}
        plain.setdefault(repr((row.method, sorted(settings.items()))), replace(row, settings=settings))
    return list(plain.values())


def one_run(section: str, dataset: str, row: Row, seed: int, given: argparse.Namespace) -> Job:
    plan, label = SECTIONS[section], f"{section}-head" if given.head else section
    epochs = given.epochs or plan.epochs
    name = f"{label}-{dataset}-{row.name}-{epochs}-{seed}".replace(" ", "_")
    data = sources(given.data)
    tables = ("flowers-known", "flowers-known-to-choose", "cub-known")
    data |= {known: {"source": str(given.data / f"{known}.csv")} for known in tables}
    flat = COMMON | {"weights": str(given.weights), "epochs": epochs, "seed": seed} | plan.settings
    flat |= HEAD | plan.head if given.head else {}
    flat |= data[dataset] | row.settings
    run = Run(given.runs / name)
    reason = yield Task(name, make_settings(flat.pop("source"), row.method, flat), run.folder)
    found: dict[str, Any] = {"section": label, "dataset": dataset, "name": row.name, "epochs": epochs, "seed": seed}
    if reason is None:
        scores, training = run.scores, run.settings().training
        found |= {"batch_size": training.batch_size, "learning_rate": training.learning_rate}
        found |= {"method": row.method, "settings": row.settings, "seconds": seconds_of(run)}
        found |= {
            "backbone": shown(scores["backbone"]),
            "before": shown(scores["before"]),
            "after": shown(scores["after"]),
            "made": provenance_of([run]),
        }
        if curve := [{"step": record["step"]} | shown(record) for record in run.evaluations()]:
            found["curve"] = curve
        if plan.attributes:
            found |= hidden(run)
    else:
        found["failed"] = reason
    add(given.out, found)
    print(label, dataset, row.name, found.get("after", found.get("failed")), flush=True)


def hidden(run: Run) -> dict[str, Any]:
    """The scores on single species, and the share of the nearest images that are of the same family."""
    found = nearkin.evaluate(run, split="test", recall_at=1, attributes=True)
    return {"after": shown(found.scores), "family": {size: each["family"] for size, each in found.attributes.items()}}


def shown(scores: Mapping[str, Any]) -> dict[str, float]:
    return {name: round(scores[name], 5) for name in SHOWN if name in scores}


def add(file: Path, row: dict[str, Any]) -> None:
    """Adds a row to the file, or replaces the same one."""
    rows = json.loads(file.read_text())["rows"] if file.is_file() else []
    key = ("section", "dataset", "name", "epochs", "seed")
    rows = [old for old in rows if any(old.get(name) != row.get(name) for name in key)]
    write_json(file, {"made": made(), "rows": [*rows, row]})


def curves(rows: list[dict[str, Any]], section: str, *scores: str) -> dict[str, list[list[tuple[int, float]]]]:
    """The first of the scores that a row has, over steps: a list of points per seed."""
    found: dict[str, list[list[tuple[int, float]]]] = {}
    for row in sorted(rows, key=lambda row: row["name"]):
        if row["section"] == section and "curve" in row:
            score = next(name for name in scores if name in row["after"])
            found.setdefault(row["name"], []).append([(point["step"], point[score]) for point in row["curve"]])
    return found


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
