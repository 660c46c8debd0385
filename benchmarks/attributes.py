"""Attributes that an embedding captures without training on them: Magnet, triplet and softmax on the glyphs.

    python benchmarks/attributes.py                 # hours on two cores
    python benchmarks/attributes.py --jobs 6        # on a GPU, several runs in parallel
    python benchmarks/attributes.py --quick         # a trial run of a few minutes; writes nothing to docs/

Finished runs in `--runs` are reused, so you can stop the script and start it again. It prints the tables and writes
docs/results/attributes.json and docs/images/attributes.png. The experiments follow the Magnet paper:

    plain   trained on the classes: errors on new examples, and the share of an example's neighbours that have the same
            attribute (serif, mono, bold, italic; Fig. 6d). Training never sees an attribute.
    pairs   trained on random pairs of classes: errors on the single classes (hierarchy recovery, Table 4f)

The settings are those that benchmarks/methods.py chose on validation examples; softmax has the learning rate of the
others. With pairs, Magnet has twice as many clusters per label, because a label stands for two classes (the paper: 16
instead of 2). As in the paper, Magnet is evaluated by its nearest clusters and the others by soft kNN; the tables show
soft kNN for all.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from known_classes import known_classes
from methods import DOCS, KNOWN, KNOWN_CHOSEN, Trial, markdown, run_trials
from provenance import command

import nearkin
from nearkin.data import load_dataset, make_splits
from nearkin.evaluation.attribute_columns import ALL
from nearkin.experiments.demo import pixel_space
from nearkin.experiments.runs import provenance_of
from nearkin.files import write_json
from nearkin.reports.figures import plain_figure
from nearkin.training.scoring import concentrations

CHOSEN: dict[str, dict[str, Any]] = KNOWN_CHOSEN | {"softmax": {"learning_rate": 1e-3}}
PAIRS: dict[str, dict[str, Any]] = {"magnet": {"clusters": 2 * KNOWN_CHOSEN["magnet"]["clusters"]}}
TRAITS = ("serif", "mono", "bold", "italic")
NEW = 6  # test examples per class
Results = dict[str, dict[str, list[dict[str, Any]]]]  # task -> method -> one result per seed


def all_trials(data: Path, seeds: Sequence[int], changes: Mapping[str, Any]) -> dict[str, list[Trial]]:
    tasks: dict[str, dict[str, dict[str, Any]]] = {
        "plain": {method: {} for method in CHOSEN},
        "pairs": {method: PAIRS.get(method, {}) | {"collapse_pairs": True} for method in CHOSEN},
    }
    return {
        task: [
            Trial(f"{method}-{task}", seed, str(data), method, {**KNOWN, **CHOSEN[method], **settings, **changes})
            for seed in seeds
            for method, settings in of_methods.items()
        ]
        for task, of_methods in tasks.items()
    }


def measure(trial: Trial, folder: Path) -> dict[str, Any]:
    """Errors on new examples with the true classes, and shares of neighbours with the same attribute."""
    measured = nearkin.evaluate(trial.run(folder), split="test", recall_at=1, attributes=True)
    soft_knn = measured.scores["soft_knn_error"]
    found = {
        "error": measured.scores.get("nearest_cluster_error", soft_knn),
        "soft kNN error": soft_knn,
        "recall@1": measured.scores["recall@1"],
        "attributes": {size: shares[ALL] for size, shares in measured.attributes.items()},
    }
    print(f"{trial.run(folder).folder.name}: error {found['error']:.4f}, soft kNN {soft_knn:.4f}", flush=True)
    return found


def pixel_shares(data: Path) -> dict[str, float]:
    """The concentration of the traits among nearest neighbours by raw pixels."""
    test = make_splits(load_dataset(str(data))).test
    assert test is not None
    return {size: shares[ALL] for size, shares in concentrations(pixel_space(test), test).items()}


def report(results: Results, pixels: Mapping[str, float]) -> None:
    titles = {"plain": "Trained on the classes", "pairs": "Trained on pairs of classes, evaluated on single classes"}
    for task, by_method in results.items():
        scores = ("error", "soft kNN error", "recall@1")
        rows = {method: {score: [run[score] for run in runs] for score in scores} for method, runs in by_method.items()}
        print("\n" + markdown(titles[task], rows))
    shares = {
        method: {size: [run["attributes"][size] for run in runs] for size in pixels}
        for method, runs in results["plain"].items()
    }
    print(markdown("Share of the n nearest with the same attribute", shares | {"raw pixels": as_lists(pixels)}))


def as_lists(shares: Mapping[str, float]) -> dict[str, list[float]]:
    return {size: [share] for size, share in shares.items()}


def draw(results: Results, pixels: Mapping[str, float], file: Path) -> None:
    """Fig. 6d on the left, the errors of both tasks on the right: mean, minimum and maximum over seeds."""
    figure = plain_figure(9.6, 4)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    sizes = [size for size in pixels if size != "chance"]
    for place, method in enumerate(CHOSEN):
        values = np.array([[run["attributes"][size] for size in sizes] for run in results["plain"][method]])
        left.plot(sizes, values.mean(0), marker="o", markersize=3, color=f"C{place}", label=method)
        left.fill_between(sizes, values.min(0), values.max(0), color=f"C{place}", alpha=0.15, linewidth=0)
        errors = np.array([[run["error"] for run in results[task][method]] for task in ("plain", "pairs")])
        mean = errors.mean(1)
        reach = np.abs([mean - errors.min(1), errors.max(1) - mean])
        right.bar(np.arange(2) + 0.27 * (place - 1), mean, 0.24, yerr=reach, color=f"C{place}", capsize=3)
    left.plot(sizes, [pixels[size] for size in sizes], color="0.6", label="raw pixels")
    left.axhline(pixels["chance"], color="0.6", linestyle=":", label="chance")
    left.set_xlabel("nearest neighbours")
    left.set_ylabel("share with the same attribute")
    left.legend(frameon=False)
    right.set_xticks(range(2), ["trained on classes", "trained on pairs"])
    right.set_ylabel("error on new examples, by class")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path("runs/attributes"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--quick", action="store_true", help="few classes, two epochs, one seed, in a temporary folder")
    options = parser.parse_args()
    runs, docs, seeds = options.runs, DOCS, options.seeds
    if options.quick:
        runs = docs = Path(tempfile.mkdtemp(prefix="nearkin-attributes-"))
        seeds = seeds[:1]
    runs.mkdir(parents=True, exist_ok=True)
    source = "glyphs:classes=24,per_class=12" if options.quick else "glyphs"
    data = known_classes(runs / "known-traits.npz", source, NEW, traits=TRAITS)
    trials = all_trials(data, seeds, {"epochs": 2} if options.quick else {})
    every = [trial for of_task in trials.values() for trial in of_task]
    run_trials(every, runs, options.jobs, options.device)
    unfinished = [trial.run(runs).folder.name for trial in every if not trial.run(runs).scores_file.is_file()]
    if unfinished:
        raise SystemExit(f"not finished: {', '.join(unfinished)}; run the same command to continue")
    results: Results = {
        task: {method: [measure(trial, runs) for trial in of_task if trial.method == method] for method in CHOSEN}
        for task, of_task in trials.items()
    }
    pixels = pixel_shares(data)
    report(results, pixels)
    written = docs / "results" / "attributes.json"
    written.parent.mkdir(parents=True, exist_ok=True)
    about = {"made": provenance_of(trial.run(runs) for trial in every), "command": command(), "seeds": seeds}
    write_json(written, about | results | {"raw pixels": pixels})
    draw(results, pixels, docs / "images" / "attributes.png")
    print(f"written: {written} and {docs / 'images' / 'attributes.png'}")


if __name__ == "__main__":
    main()
