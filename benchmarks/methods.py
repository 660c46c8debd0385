"""All methods on the glyphs, with the same network, data and number of images seen; and claims of three papers.

    python benchmarks/methods.py                          # everything, three hours on two cores
    python benchmarks/methods.py --jobs 6                 # on a GPU, several runs in parallel
    python benchmarks/methods.py --only table --seeds 0   # one experiment, one seed

Finished runs in `--runs` are reused, so you can stop the script and start it again. It prints the tables of
docs/results.md and writes their numbers to docs/results/methods.json and the figures to docs/images/*.png. In the JSON,
``made`` has the date, hardware and version of the runs of each command.

    choose     four settings of every method, scored on validation classes (or examples) with another seed
    table      every method and baseline, on classes never seen in training
    learners   divide and conquer with 1, 2, 4 and 8 learners (the paper's Fig. 1), and the ablations of its Table 6
    magnet     Magnet and triplet: steps to triplet's final error on new examples of known classes (Magnet's Fig. 5)
    warm       the same, starting from a network trained with softmax for three epochs, as in the paper
    trained    the same, starting from a network trained with softmax for 20 epochs
    long       spectral for 100 to 1,000 steps: scores of classes that it trained on and of others
    refreshes  Magnet with a refresh in every epoch and in every third, on new and on known classes

CHOSEN below has the best settings of ``choose``; the test split did not influence them.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from known_classes import known_classes
from provenance import command

import nearkin
from nearkin.data import load_dataset, make_splits
from nearkin.evaluation import evaluate
from nearkin.experiments.demo import pixel_space
from nearkin.experiments.paper_figures import curve, steps_to_reach
from nearkin.experiments.pool import Job, run_jobs
from nearkin.experiments.runs import Task, provenance_of
from nearkin.methods import known_methods
from nearkin.reports.figures import plain_figure
from nearkin.training import Run
from nearkin.training.settings import make_settings

DOCS = Path(__file__).parents[1] / "docs"
# All 200 training classes, without a validation split: 40 steps per epoch with the default batch.
BUDGET: dict[str, Any] = {"epochs": 20, "dim": 128, "backbone": "small", "validation": 0.0, "keep": "last"}
KNOWN: dict[str, Any] = {"epochs": 20, "dim": 128, "backbone": "small", "batch_size": 48}
SCALED: dict[str, Any] = {"alpha": 8.0, "scaling": 15.0}
EVERY_EPOCH: dict[str, Any] = {"refresh_epochs": 1}  # Magnet's refreshes beside triplet, as in its paper
CHOICES: dict[str, list[dict[str, Any]]] = {  # two settings per method, each with two learning rates
    method: [settings | {"learning_rate": rate} for settings in both for rate in (1e-3, 3e-3)]
    for method, both in {
        "facility-location": ({"gamma": 10.0}, {"gamma": 100.0}),
        "spectral": ({"batch_size": 1260}, {"batch_size": 630}),
        "divide-and-conquer": ({"wraps": "margin"}, {"wraps": "margin:beta=0.8"}),
        "magnet": (
            {"batch_size": 128, "clusters": 1, "alpha": 1.0, "scaling": 1.0},
            {"batch_size": 128, "clusters": 1} | SCALED,
        ),
        "rank": ({"per_class": 8}, {"per_class": 4}),
        "triplet": ({"margin": 0.2}, {"margin": 0.5}),
        "lifted": ({"margin": 1.0}, {"margin": 2.0}),
        "npairs": ({"regularization": 0.002}, {"regularization": 0.1}),
        "contrastive": ({"margin": 1.0}, {"margin": 1.4}),
        "margin": ({"beta": 1.2}, {"beta": 0.8}),
        "nca": ({"scale": 1.0}, {"scale": 3.0}),
        "proxy-nca": ({}, {"loss_learning_rate": 1e-2}),
        "softmax": ({}, {"loss_learning_rate": 1e-2}),
    }.items()
}
KNOWN_CHOICES: dict[str, list[dict[str, Any]]] = {
    method: [settings | {"learning_rate": rate} for settings in both for rate in (1e-3, 3e-3)]
    for method, both in {
        "magnet": (EVERY_EPOCH | {"clusters": 2, "alpha": 4.0, "scaling": 1.0}, EVERY_EPOCH | {"clusters": 2} | SCALED),
        "triplet": ({"margin": 0.2}, {"margin": 0.5}),
    }.items()
}
CHOSEN: dict[str, dict[str, Any]] = {
    "facility-location": {"gamma": 10.0, "learning_rate": 3e-3},
    "spectral": {"batch_size": 1260, "learning_rate": 3e-3},
    "divide-and-conquer": {"wraps": "margin:beta=0.8", "learning_rate": 3e-3},
    "magnet": {"batch_size": 128, "clusters": 1, "learning_rate": 3e-3} | SCALED,
    "rank": {"per_class": 8, "learning_rate": 3e-3},
    "triplet": {"margin": 0.5, "learning_rate": 3e-3},
    "lifted": {"margin": 1.0, "learning_rate": 3e-3},
    "npairs": {"regularization": 0.1, "learning_rate": 1e-3},
    "contrastive": {"margin": 1.0, "learning_rate": 1e-3},
    "margin": {"beta": 1.2, "learning_rate": 3e-3},
    "nca": {"scale": 3.0, "learning_rate": 3e-3},
    "proxy-nca": {"loss_learning_rate": 1e-2, "learning_rate": 3e-3},
    "softmax": {"learning_rate": 3e-3},
}
KNOWN_CHOSEN: dict[str, dict[str, Any]] = {
    "magnet": {"clusters": 2, "learning_rate": 3e-3} | SCALED,
    "triplet": {"margin": 0.5, "learning_rate": 1e-3},
}
EXPERIMENTS = ("choose", "table", "learners", "magnet", "warm", "trained", "long", "refreshes")
STARTS = {"warm": 3, "trained": 20}  # epochs of softmax
LENGTHS = (25, 50, 125, 250)  # epochs of four steps
SCORES = ("recall@1", "map@r", "nmi_arithmetic")


@dataclass(frozen=True)
class Trial:
    """One run: its name, data, method and settings."""

    name: str
    seed: int
    data: str
    method: str
    settings: dict[str, Any]

    def run(self, folder: Path) -> Run:
        return Run(folder / f"{self.name}-{self.seed}")


def table_trials(seeds: Sequence[int]) -> list[Trial]:
    names = [method.name for method in known_methods() if method.in_all]
    return [Trial(name, seed, "glyphs", name, BUDGET | CHOSEN.get(name, {})) for seed in seeds for name in names]


def learner_trials(seeds: Sequence[int]) -> list[Trial]:
    variants: dict[str, dict[str, Any]] = {f"learners={k}": {"learners": k} for k in (1, 2, 4, 8)}
    variants |= {
        "random-parts": {"partition": "random"},
        "parts-by-labels": {"partition": "labels"},
        "no-split": {"split_embedding": False},
    }
    common = BUDGET | CHOSEN.get("divide-and-conquer", {})
    return [
        Trial(name, seed, "glyphs", "divide-and-conquer", common | changes)
        for seed in seeds
        for name, changes in variants.items()
    ]


# A network after a few epochs of softmax is no finished backbone: batch norm goes on learning, and the head is new.
FROM_A_START: dict[str, Any] = {
    "backbone_learning_rate": 1e-3,
    "freeze_batch_norm": False,
    "head_init": "random",
    "warmup_steps": 0,
}


def magnet_trials(seeds: Sequence[int], data: Path, kind: str, start: Run | None = None) -> list[Trial]:
    """Magnet and triplet on known classes, from scratch or from the backbone of a run."""
    weights = {} if start is None else {"weights": str(start.model_folder / "model.safetensors"), **FROM_A_START}
    return [
        Trial(f"{method}-{kind}", seed, str(data), method, KNOWN | KNOWN_CHOSEN[method] | weights | refreshes)
        for seed in seeds
        for method, refreshes in (("magnet", EVERY_EPOCH), ("triplet", {}))
    ]


def long_trials(seeds: Sequence[int]) -> list[Trial]:
    common = BUDGET | CHOSEN["spectral"] | {"evaluate_every": max(LENGTHS)}
    return [
        Trial(f"spectral-long-{epochs}", seed, "glyphs", "spectral", common | {"epochs": epochs})
        for seed in seeds
        for epochs in LENGTHS
    ]


def refresh_trials(seeds: Sequence[int], data: Path) -> list[Trial]:
    return [
        Trial(f"magnet-{classes}-every-{epochs}", seed, source, "magnet", settings | {"refresh_epochs": epochs})
        for seed in seeds
        for classes, source, settings in (
            ("new", "glyphs", BUDGET | CHOSEN["magnet"]),
            ("known", str(data), KNOWN | KNOWN_CHOSEN["magnet"]),
        )
        for epochs in (1, 3)
    ]


def choice_trials(seed: int, data: Path) -> list[Trial]:
    unseen = {"validation": 0.25, "evaluate_every": 20}
    return [
        Trial(f"choose-{method}-{number}", seed, "glyphs", method, BUDGET | unseen | changes)
        for method, all_changes in CHOICES.items()
        for number, changes in enumerate(all_changes)
    ] + [
        Trial(f"choose-{method}-known-{number}", seed, str(data), method, KNOWN | changes)
        for method, all_changes in KNOWN_CHOICES.items()
        for number, changes in enumerate(all_changes)
    ]


def run_trials(trials: Sequence[Trial], folder: Path, jobs: int, device: str) -> None:
    def job(trial: Trial) -> Job:
        target = trial.run(folder).folder
        settings = make_settings(trial.data, trial.method, trial.settings | {"seed": trial.seed, "device": device})
        refused = yield Task(target.name, settings, target)
        print(f"{target.name}: {refused or 'done'}", flush=True)

    torch.set_num_threads(1)  # also in workers, so that scores do not depend on the number of jobs
    os.environ["OMP_NUM_THREADS"] = "1"
    run_jobs(map(job, trials), len(trials), jobs)


def final(run: Run) -> dict[str, float]:
    return dict(json.loads(run.scores_file.read_text())["after"])


def refresh_share(run: Run) -> float:
    return float(np.mean([record["refresh_share"] for record in run.metrics if record["kind"] == "training"]))


def mean_and_spread(values: Sequence[float]) -> str:
    return f"{np.mean(values):.4f} ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else f"{values[0]:.4f}"


def markdown(title: str, rows: dict[str, dict[str, list[float]]]) -> str:
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    lines = [f"### {title}", "", f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name, row in rows.items():
        cells = [mean_and_spread(row[column]) if column in row else "" for column in columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def rows_of(trials: Sequence[Trial], folder: Path, scores: Sequence[str]) -> dict[str, dict[str, list[float]]]:
    """Scores of the finished runs by name, one number per seed."""
    rows: dict[str, dict[str, list[float]]] = {}
    for trial in trials:
        if trial.run(folder).scores_file.is_file():
            after = final(trial.run(folder))
            row = rows.setdefault(trial.name, {})
            for score in scores:
                row.setdefault(score, []).append(after[score])
            row.setdefault("refresh share", []).append(refresh_share(trial.run(folder)))
    return rows


def baselines(first: Run) -> dict[str, dict[str, list[float]]]:
    test = make_splits(load_dataset("glyphs")).test
    assert test is not None
    pixels = evaluate(pixel_space(test)).scores
    untrained = json.loads(first.scores_file.read_text())["before"]
    return {
        name: {score: [found[score]] for score in SCORES}
        for name, found in (("raw pixels", pixels), ("untrained network", untrained))
    }


def report_choices(trials: Sequence[Trial], folder: Path) -> dict[str, Any]:
    """The score of every setting: MAP@R on validation classes, or the error on validation examples."""
    print("### Validation scores of the settings\n")
    scored = {}
    for trial in trials:
        records = [record for record in trial.run(folder).metrics if record["kind"] == "evaluation"]
        changes = (KNOWN_CHOICES if "known" in trial.name else CHOICES)[trial.method][int(trial.name[-1])]
        error = {"magnet": "nearest_cluster_error", "triplet": "soft_knn_error"}
        score = records[-1][error[trial.method] if "known" in trial.name else "map@r"]
        scored[trial.name] = {"settings": changes, "score": score}
        print(f"{trial.name:32s} {score:.4f}  {changes}")
    return {"choices": scored}


def report_table(trials: Sequence[Trial], folder: Path) -> dict[str, Any]:
    rows = baselines(trials[0].run(folder)) | rows_of(trials, folder, SCORES)
    print(markdown("All methods, classes never seen in training", rows))
    spectral = [trial for trial in trials if trial.method == "spectral"]
    names = [*SCORES, *(f"with_sc_{score}" for score in SCORES)]
    with_sc = rows_of(spectral, folder, names)
    print(markdown("Spectral, without and with SC", with_sc))
    return {"table": rows, "spectral": with_sc}


def report_learners(trials: Sequence[Trial], folder: Path) -> dict[str, Any]:
    rows = rows_of(trials, folder, SCORES)
    print(markdown("Divide and conquer: learners and ablations", rows))
    curves: dict[str, list[list[tuple[int, float]]]] = {}
    for trial in trials:
        if trial.name.startswith("learners") and trial.run(folder).scores_file.is_file():
            curves.setdefault(trial.name, []).append(curve(trial.run(folder), "recall@1"))
    draw("learners", curves, "Recall@1 on unseen classes", (0.6, 1.0))
    return {"learners": rows, "learners_curves": curves}


def report_magnet(trials: Sequence[Trial], folder: Path) -> dict[str, Any]:
    kind = trials[0].name.rpartition("-")[2]
    curves: dict[str, list[list[tuple[int, float]]]] = {
        "triplet, soft kNN": [],
        "magnet, kNC": [],
        "magnet, soft kNN": [],
    }
    for trial in trials:
        run = trial.run(folder)
        if run.scores_file.is_file():
            curves[f"{trial.method}, soft kNN"].append(curve(run, "soft_knn_error"))
            if trial.method == "magnet":
                curves["magnet, kNC"].append(curve(run, "nearest_cluster_error"))
    print(f"### Magnet and triplet ({kind}): steps to triplet's final error\n")
    print("| seed | triplet: steps | error | magnet (kNC): steps | ratio | magnet's final error |")
    print("|---|---|---|---|---|---|")
    for seed, (triplet, magnet) in enumerate(zip(curves["triplet, soft kNN"], curves["magnet, kNC"], strict=False)):
        error = triplet[-1][1]
        slow, fast = steps_to_reach(triplet, error), steps_to_reach(magnet, error)
        ratio = f"{slow / fast:.1f}" if slow and fast else "never"
        print(f"| {seed} | {slow} | {error:.4f} | {fast} | {ratio} | {magnet[-1][1]:.4f} |")
    draw("magnet" if kind == "known" else f"magnet-{kind}", curves, "error on new examples", (0.0, 0.5))
    return {f"magnet_{kind}_curves": curves}


def report_long(trials: Sequence[Trial], folder: Path) -> dict[str, Any]:
    """The final scores, with those of the classes that were trained on."""
    rows = rows_of(trials, folder, SCORES)
    for trial in (trial for trial in trials if trial.run(folder).scores_file.is_file()):
        trained_on = nearkin.evaluate(trial.run(folder), split="train", recall_at=1).scores
        for score in SCORES:
            rows[trial.name].setdefault(f"training classes, {score}", []).append(trained_on[score])
    print(markdown("Spectral, by the number of epochs", rows))
    return {"long": rows}


def report_refreshes(trials: Sequence[Trial], folder: Path) -> dict[str, Any]:
    rows: dict[str, dict[str, list[float]]] = {}
    for classes, scores in (("new", SCORES), ("known", ("nearest_cluster_error",))):
        rows |= rows_of([trial for trial in trials if f"-{classes}-" in trial.name], folder, scores)
    print(markdown("Magnet, by epochs between refreshes", rows))
    return {"refreshes": rows}


def draw(
    name: str,
    curves: dict[str, list[list[tuple[int, float]]]],
    label: str,
    limits: tuple[float, float],
) -> None:
    """One line per name: the mean over seeds, with a band from minimum to maximum."""
    figure = plain_figure(6.4, 4)
    axes = figure.subplots()
    for title, runs in curves.items():
        if runs:
            steps = [step for step, _ in runs[0]]
            values = np.array([[value for _, value in run] for run in runs])
            (line,) = axes.plot(steps, values.mean(0), label=title)
            axes.fill_between(steps, values.min(0), values.max(0), color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set_xlabel("steps")
    axes.set_ylabel(label)
    axes.set_ylim(limits)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(DOCS / "images" / f"{name}.png", dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=EXPERIMENTS, default=EXPERIMENTS[1:])
    parser.add_argument("--methods", nargs="+", help="only these methods")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path("runs/methods"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    load_dataset("glyphs")  # rendered once, before several processes need it
    # All classes are in both splits, with six test examples each; settings are chosen on the four before those.
    data = known_classes(options.runs / "known.npz")
    data_to_choose = known_classes(options.runs / "known-to-choose.npz", new=4, left_out=6)
    starts = {
        kind: Trial(f"start-{kind}", 100, str(data), "softmax", KNOWN | {"epochs": epochs})
        for kind, epochs in STARTS.items()
    }
    trials = {
        "choose": choice_trials(100, data_to_choose),
        "table": table_trials(options.seeds),
        "learners": learner_trials(options.seeds),
        "magnet": magnet_trials(options.seeds, data, "known"),
        "long": long_trials(options.seeds),
        "refreshes": refresh_trials(options.seeds, data),
        **{kind: magnet_trials(options.seeds, data, kind, start.run(options.runs)) for kind, start in starts.items()},
    }
    if options.methods:
        trials = {
            name: [trial for trial in all_of_them if trial.method in options.methods]
            for name, all_of_them in trials.items()
        }
    wanted = [trial for name in options.only for trial in trials[name]]
    run_trials([starts[name] for name in options.only if name in starts], options.runs, 1, options.device)
    run_trials(wanted, options.runs, options.jobs, options.device)
    report = {
        "choose": report_choices,
        "table": report_table,
        "learners": report_learners,
        "magnet": report_magnet,
        "warm": report_magnet,
        "trained": report_magnet,
        "long": report_long,
        "refreshes": report_refreshes,
    }
    results = DOCS / "results" / "methods.json"
    results.parent.mkdir(exist_ok=True)
    known = json.loads(results.read_text()) if results.exists() else {}
    for name in options.only:
        for title, rows in report[name](trials[name], options.runs).items():
            known.setdefault(title, {}).update(rows)
    known.setdefault("made", {})[command()] = provenance_of(trial.run(options.runs) for trial in wanted)
    results.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
