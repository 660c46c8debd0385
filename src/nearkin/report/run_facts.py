"""What a report tells, gathered once: a run's records, and one of its parts as its model embeds it now."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nearkin.data import Dataset, Splits
from nearkin.data.hierarchy import true_classes
from nearkin.errors import UserError, unknown_name
from nearkin.evaluation import Diagnostics, EvaluationResult, confidence_intervals, diagnostics, evaluate
from nearkin.models import Embedder
from nearkin.space import Space
from nearkin.training import Run, Settings
from nearkin.training.prepare import load_splits
from nearkin.training.scoring import embed_everything

PARTS = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class Looked:
    """A part of the data in the space of the run's model; everything lies on the CPU.

    Attributes:
        part: "train", "validation" or "test".
        dataset: its items; ``space`` has one row for each.
        evaluation: None where the part cannot be measured.
        intervals: of the retrieval scores, 95 %, by bootstrap over classes.
        spread: distances and spectrum.
    """

    part: str
    dataset: Dataset
    space: Space
    evaluation: EvaluationResult | None
    intervals: dict[str, tuple[float, float]]
    spread: Diagnostics

    def class_name(self, row: int) -> str:
        return self.dataset.classes[int(self.dataset.labels[row])]


@dataclass(frozen=True, eq=False)
class RunFacts:
    """A run as far as it got.

    Attributes:
        records: the lines of its metrics.
        chosen: by what its model was chosen; empty where training has not ended.
        outcome, verdict: what training was worth: "better", "not better" or "unknown", and in a sentence.
        backbone, before, after: scores of the test split that training measured, of the backbone alone and of the model
            before and after; empty where it did not, or on other data.
        looked: None where its data are gone.
        train: the training part, for what methods find in it; None where it is gone.
        notices: what is left out or not as expected, a sentence each.
    """

    run: Run
    settings: Settings
    records: list[dict[str, Any]]
    chosen: str
    outcome: str
    verdict: str
    backbone: dict[str, float]
    before: dict[str, float]
    after: dict[str, float]
    looked: Looked | None
    train: Dataset | None
    notices: list[str]


def gather(folder: str | Path, part: str = "test") -> RunFacts:
    """Reads a run and embeds one of its parts, once; what cannot be had becomes a notice.

    Where there is no test part, the validation part stands in for it, or else the training part.
    """
    if part not in PARTS:
        raise unknown_name("part", part, PARTS)
    run = Run.open(folder)
    if not (run.model_folder / "model.json").is_file():
        raise UserError(f"{folder} has no model yet; go on training with: {run.resume_command}")
    notices: list[str] = []
    settings, records = run.settings(), run.metrics
    scores = run.scores if run.scores_file.is_file() else {}
    if not scores:
        epoch = max((record["epoch"] for record in records), default=0)
        notices.append(
            f"Training has not ended (epoch {epoch} of {settings.training.epochs}); this is the model kept so far. "
            f"Go on with: {run.resume_command}"
        )
        scores = {"before": next((_numbers(each) for each in records if _is_start(each)), {})}
    known = {name: scores.get(name, {}) for name in ("backbone", "before", "after")}
    said = {name: scores.get(name, "") for name in ("chosen", "outcome", "verdict")}
    try:
        splits = load_splits(settings.data, settings.training.seed)
    except UserError as error:
        notices.append(
            f"The data cannot be read ({error}). Left out: intervals, map, neighbours, classes, distances, spectrum."
        )
        return RunFacts(run, settings, records, **said, **known, looked=None, train=None, notices=notices)
    if not run.same_data(splits.digest()):
        known, said = {name: {} for name in known}, said | {"outcome": "", "verdict": ""}
        notices.append(
            "The data are not what they were when this run began: test classes may have been trained on. "
            "The scores are those of the data as they are now; those that training measured are left out."
        )
    shown = _shown_part(splits, part, notices)
    looked = _look(run, shown, getattr(splits, shown), notices)
    return RunFacts(run, settings, records, **said, **known, looked=looked, train=splits.train, notices=notices)


def _is_start(record: dict[str, Any]) -> bool:
    return bool(record["kind"] == "before" and record["part"] == "test")


def _numbers(record: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in record.items() if isinstance(value, float)}


def _shown_part(splits: Splits, part: str, notices: list[str]) -> str:
    if getattr(splits, part) is not None:
        return part
    if part == "validation":
        raise UserError("this run has no validation part; choose the part test or train")
    instead = "train" if splits.validation is None else "validation"
    seen = "which the model was trained on" if instead == "train" else "which the model may have been chosen on"
    notices.append(f"There is no test part: everything below shows the {_called(instead)}, {seen}.")
    return instead


def _called(part: str) -> str:
    return "training part" if part == "train" else f"{part} part"


def _look(run: Run, part: str, dataset: Dataset, notices: list[str]) -> Looked:
    dataset = true_classes(dataset)
    space = embed_everything(Embedder.load(run.folder), dataset)
    evaluation, intervals = None, {}
    try:
        evaluation = evaluate(space)
        evaluation = replace(evaluation, retrieval=evaluation.retrieval.to("cpu"))
        intervals = confidence_intervals(evaluation, space, over="classes")
    except UserError as error:
        what = "Intervals" if evaluation else "Scores, neighbours, classes and confusions"
        notices.append(f"{what} are left out: {error}.")
    return Looked(part, dataset, space.to("cpu"), evaluation, intervals, diagnostics(space))
