"""Which model of a run is kept, and which split chooses it: never the test split without a warning."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np

from nearkin.data import Dataset, Splits
from nearkin.data.summary import counted
from nearkin.errors import UserError, unknown_name
from nearkin.evaluation import EvaluationResult, describe
from nearkin.training.settings import TrainingSettings

log = logging.getLogger("nearkin")
PRIMARY = EvaluationResult.primary
# For each choice: the kind of protocol ("fair" or "paper"), and its description.
KEEP = {
    "last": ("fair", "fair: the model of the last epoch, not chosen by test scores"),
    "best-on-validation": ("fair", "fair: models chosen on held-out training classes"),
    "best-on-test": ("paper", "paper: the best point of the test curve, which is optimistic"),
}


def check_keep(keep: str) -> None:
    """Raises for an unknown choice; an empty one is the default."""
    if keep not in ("", *KEEP):
        raise unknown_name("keep", keep, KEEP)


def held_out_splits(splits: Splits, tested: bool) -> dict[str, Dataset | None]:
    """The splits to evaluate, by name; without ``tested``, not the test split."""
    return {"validation": splits.validation, "test": splits.test if tested else None}


def check_choice(training: TrainingSettings, splits: Mapping[str, Dataset | None]) -> None:
    """Raises if ``keep`` needs scores that are missing."""
    keep = training.keep
    if keep == "last" and training.patience:
        raise UserError("patience needs validation classes; hold some out with validation=0.1")
    if keep != "last" and not training.evaluate_every:
        raise UserError(f'keep="{keep}" needs evaluations during training; use evaluate_every=1 or more')
    if keep == "best-on-test" and splits["test"] is None:
        raise UserError("there is no test split to choose the model on; choose another split")
    if keep == "best-on-validation" and splits["validation"] is None:
        raise UserError("there are no validation classes to choose the model on; hold some out with validation=0.1")


def monitored_split(training: TrainingSettings, splits: Mapping[str, Dataset | None]) -> str:
    """The split to evaluate during training."""
    keep = training.keep
    if keep == "best-on-test":
        log.warning("the model is chosen on the test split, as in many papers, so its test scores are optimistic")
    return "test" if keep == "best-on-test" or splits["validation"] is None else "validation"


def check_measurable(splits: Mapping[str, Dataset | None]) -> None:
    """Raises for a split that cannot be evaluated, before hours of training."""
    for name, split in splits.items():
        if split is not None:
            _check_measurable(name, split)


def _check_measurable(name: str, split: Dataset) -> None:
    in_gallery = np.ones(len(split), bool) if split.is_gallery is None else split.is_gallery
    is_query = np.ones(len(split), bool) if split.is_query is None else split.is_query
    available = np.bincount(split.labels[in_gallery], minlength=len(split.classes))[split.labels]
    if len(split.present_classes) < 2 or not (available - in_gallery)[is_query].any():
        raise UserError(
            f"the {name} split ({counted(len(split), 'item')}, {counted(len(split.present_classes), 'class')}) "
            "cannot be evaluated: "
            "it needs two classes and a query with another item of its class; add items, or change split or validation"
        )


def choice_in_words(training: TrainingSettings, monitored: str) -> str:
    return "last epoch" if training.keep == "last" else f"best {describe(PRIMARY).title} on the {monitored} split"
