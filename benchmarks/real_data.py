"""The methods on natural images, one `nearkin compare` per dataset and protocol: the tables of docs/results.md.

    python benchmarks/real_data.py --data DATA --weights FILE --jobs 12
    python benchmarks/real_data.py --data DATA --weights FILE --only cub-paper cars

DATA has CUB_200_2011 in its official layout, and cars196_train_boxes and flowers102 with one folder per class. FILE has
the ImageNet weights of timm's tf_efficientnet_lite0. Finished runs in `--runs` are reused, so you can stop the script
and start it again, even on another machine: that needs only the small files of a run (all but its model and
checkpoint), except for trials of a row whose seed 0 has not finished. Each finished section is published
(benchmarks/publish.py), and its table is printed.

    cub         all methods, fair, three seeds
    cub-paper   the five whole-space methods, protocol "paper"
    cars        the five, triplet, margin and Proxy-NCA, fair, three seeds
    flowers     the same
    cub-tuned   the same eight on CUB, each with the best of five trials, scored on validation classes
    cub-128, cars-128, flowers-128
                all of ``ROWS`` on images of 128 pixels, each with its own batch size and the best of fifteen trials
    cub-head-tuned, cars-head-tuned, flowers-head-tuned
                all of ``HEAD_ROWS``, only a head on frozen features, with the best of fifteen trials
    …-128-paper, …-head-tuned-paper
                the same rows with the settings found there, protocol "paper"

A section with fifteen trials trains 17 runs per row, most of them for a few epochs. Those on images of 128 pixels
compile the backbone, so every process starts slowly. Heads need no GPU: two CPU cores train them in less than an hour a
dataset. ``--rows`` with ``--add`` adds rows to the published tables, without the runs of the others.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from publish import DOCS, publish, read

from nearkin.experiments import compare
from nearkin.files import write_json

FIVE = ("facility-location", "spectral", "divide-and-conquer", "magnet", "rank")
EIGHT = (*FIVE, "triplet", "margin", "proxy-nca")
ROWS = (
    "rank", "rank:batches=neighbourhoods", "facility-location", "divide-and-conquer",
    "divide-and-conquer:wraps=triplet", "magnet", "spectral:micro_batch=126", "triplet", "margin", "proxy-nca",
    "npairs", "softmax", "pml:loss_name=MultiSimilarityLoss",
    "pml:loss_name=ProxyAnchorLoss,loss_learning_rate=0.04",
)  # fmt: skip
HEAD_ROWS = (
    "rank", "rank:batches=neighbourhoods", "rank:batches=clusters", "triplet", "triplet:batches=neighbourhoods",
    "margin", "margin:batches=neighbourhoods", "proxy-nca", "proxy-nca:batches=neighbourhoods", "divide-and-conquer",
    "divide-and-conquer:wraps=rank", "magnet",
    "magnet:variance=none,scaling=20,alpha=8,candidates=index,clusters=1", "facility-location", "spectral", "npairs",
    "softmax", "pml:loss_name=MultiSimilarityLoss", "pml:loss_name=ProxyAnchorLoss,loss_learning_rate=0.04",
)  # fmt: skip
COMMON: dict[str, Any] = {"backbone": "tf_efficientnet_lite0", "dim": 512, "evaluate_every": 2}
FINETUNED: dict[str, Any] = {"freeze_batch_norm": True, "keep_decoded": True}
LARGE: dict[str, Any] = FINETUNED | {
    "epochs": 12,
    "learning_rate": 4e-4,
    "micro_batch": 128,  # for the large batches of spectral; those of the others are smaller
}
SMALL: dict[str, Any] = FINETUNED | {"image_size": 128, "compile": "on", "epochs": 18}
HEAD: dict[str, Any] = {"freeze_backbone": True, "epochs": 27, "evaluate_every": 3}


@dataclass(frozen=True)
class Section:
    """One comparison."""

    source: str
    methods: tuple[str, ...]
    protocol: str
    seeds: int
    settings: dict[str, Any]
    trials: int = 0


def sections(data: Path) -> dict[str, Section]:
    cub, halves = {"root": str(data)}, {"split": "first-half"}
    cars, flowers = str(data / "cars196_train_boxes"), str(data / "flowers102")
    return {
        "cub": Section("cub200", ("all",), "fair", 3, LARGE | cub),
        "cub-paper": Section("cub200", FIVE, "paper", 3, LARGE | cub),
        "cars": Section(cars, EIGHT, "fair", 3, LARGE | halves),
        "flowers": Section(flowers, EIGHT, "fair", 3, LARGE | halves),
        "cub-tuned": Section("cub200", EIGHT, "fair", 3, LARGE | cub, trials=5),
        **{
            f"{name}-{kind}{ending}": Section(source, rows, protocol, 3, settings | own, trials=15)
            for ending, protocol in (("", "fair"), ("-paper", "paper"))
            for kind, rows, settings in (("128", ROWS, SMALL), ("head-tuned", HEAD_ROWS, HEAD))
            for name, source, own in (
                ("cub", "cub200", cub),
                ("cars", cars, halves | {"epochs": 27, "evaluate_every": 3}),
                ("flowers", flowers, halves),
            )
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the three datasets")
    parser.add_argument("--weights", type=Path, required=True, help="ImageNet weights of tf_efficientnet_lite0")
    parser.add_argument("--only", nargs="+", choices=list(sections(Path())), help="only these sections")
    parser.add_argument("--rows", nargs="+", help="only these rows")
    parser.add_argument("--add", action="store_true", help="keep the published rows that are not trained here")
    parser.add_argument("--epochs", type=int, help="instead of those of the section")
    parser.add_argument("--jobs", type=int, default=1, help="number of runs in parallel")
    parser.add_argument("--runs", type=Path, default=Path("runs/real"), help="folder for the runs")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder for results/ and images/")
    arguments = parser.parse_args()
    for name, section in sections(arguments.data.absolute()).items():
        if arguments.only and name not in arguments.only:
            continue
        shared = COMMON | section.settings | {"weights": str(arguments.weights.absolute())}
        shared |= {"epochs": arguments.epochs} if arguments.epochs else {}
        out, jobs, rows = arguments.runs / name, arguments.jobs, arguments.rows or section.methods
        if section.trials and section.protocol == "paper":  # the published trials; those already here stay
            table = arguments.docs / "results" / f"{name.removesuffix('-paper')}.json"
            if not table.is_file():
                raise SystemExit(f"{name} takes its trials from {table}, which does not exist; publish that one first")
            published = read(table)["tried"]
            trials = out / "tune" / "trials.json"
            write_json(trials, published | (read(trials) if trials.is_file() else {}))
        compare(section.source, rows, section.seeds, section.protocol, jobs, section.trials, out=out, **shared)
        print(f"\n{name}\n\n{publish(out, name, arguments.docs, arguments.add).markdown()}", flush=True)


if __name__ == "__main__":
    main()
