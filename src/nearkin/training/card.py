"""The model card of a run, written next to the model when training ends."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import nearkin
from nearkin.data import Dataset
from nearkin.data.hierarchy import true_classes
from nearkin.evaluation import score_text
from nearkin.files import write_text
from nearkin.models.card import Training, escaped, model_card
from nearkin.models.model import ModelSpec
from nearkin.training.run import Run
from nearkin.training.settings import Settings

# The settings most readers look for; config.toml in the run has all of them.
SHOWN = {
    "model": ("weights", "head_init", "freeze_backbone", "freeze_batch_norm"),
    "training": (
        *("epochs", "batch_size", "optimizer", "learning_rate", "backbone_learning_rate", "weight_decay"),
        *("schedule", "precision", "seed"),
    ),
    "data": ("split", "validation", "collapse_pairs", "augment"),
}


def write_card(
    run: Run, spec: ModelSpec, settings: Settings, splits: Mapping[str, Dataset | None], scores: dict[str, Any]
) -> None:
    """Writes ``README.md`` into the run's model folder; ``scores`` is the content of ``scores.json``."""
    write_text(run.model_folder / "README.md", model_card(spec, training_facts(settings, splits, scores)))


def replace_verdict(run: Run, old: str, new: str) -> None:
    """Replaces the verdict in the model card of a run."""
    file = run.model_folder / "README.md"
    write_text(file, file.read_text(encoding="utf-8").replace(escaped(old), escaped(new)))


def training_facts(settings: Settings, splits: Mapping[str, Dataset | None], scores: dict[str, Any]) -> Training:
    """What the card says about the training, without any path on the machine it ran on."""
    present = {name: split for name, split in splits.items() if split is not None}
    tables = settings.to_tables()
    shown = {name: tables[section][name] for section, names in SHOWN.items() for name in names}
    shown["weights"] = Path(settings.model.weights).name
    trained = true_classes(present["train"]).present_classes
    return Training(
        data=present["train"].name,
        splits={name: (len(split.present_classes), len(split)) for name, split in present.items()},
        new_classes="test" in present and not np.isin(present["test"].present_classes, trained).any(),
        method=settings.method,
        settings={name: value for name, value in tables["method"].items() if name != "name"}
        | {name: value for name, value in shown.items() if value != "" and value is not False},
        **{when: _as_text(scores[when]) for when in ("backbone", "before", "after")},
        verdict=scores["verdict"],
        chosen=scores["chosen"],
        chosen_on_test=settings.training.keep == "best-on-test",
        versions={"nearkin": nearkin.__version__, "torch": version("torch"), "timm": version("timm")},
        date=date.today().isoformat(),
    )


def _as_text(scores: Mapping[str, float]) -> dict[str, str]:
    return {name: score_text(name, value) for name, value in scores.items()}
