"""The scores of a finished run, and a sentence that compares the model with its backbone."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from nearkin.models.backbones.own import MODULE
from nearkin.training.model_selection import PRIMARY
from nearkin.training.settings import ModelSettings

log = logging.getLogger("nearkin")

CLEARLY = 0.05  # warn if the last epoch is below the best one by this fraction
Scores = Mapping[str, float]


def final_scores(
    records: Sequence[Mapping[str, Any]],
    after: Scores,
    chosen: str,
    best_epoch: int,
    start: str,
    ideas: str = "",
    warn: bool = True,
) -> dict[str, Any]:
    """The content of ``scores.json``.

    Args:
        records: the run's metrics.
        after: test scores of the kept model; empty if there is no test split.
        chosen: how it was chosen, in words.
        best_epoch: the epoch it was kept after; 0: before training.
        start: what the model is before its first step, in words.
        ideas: what to try if training did not help; see `advice`.
        warn: whether to warn if the last epoch is clearly worse than the kept one.

    >>> records = [
    ...     {"kind": "backbone", "split": "test", "recall@1": 0.946, "map@r": 0.641},
    ...     {"kind": "before", "split": "test", "recall@1": 0.940, "map@r": 0.638},
    ...     {"kind": "training", "loss": 0.1},
    ... ]
    >>> after = {"recall@1": 0.958, "map@r": 0.66}
    >>> final_scores(records, after, "last epoch", 3, "its features")["verdict"]
    'Recall@1 on unseen classes: 0.946 → 0.958 (backbone alone → trained); MAP@R: 0.641 → 0.660.'
    """
    trained = any(record["kind"] == "training" for record in records)
    evaluations = [record for record in records if record["kind"] == "evaluation" and record["split"] == "validation"]
    validation = {
        "backbone": scores_of(records, "backbone", "validation"),
        "before": scores_of(records, "before", "validation"),
        "best": _numbers(next((record for record in evaluations if record["epoch"] == best_epoch), {})),
        "last": _numbers(evaluations[-1] if evaluations else {}),
    }
    if best_epoch == 0:
        validation["best"] = validation["before"]
    test = {"backbone": scores_of(records, "backbone", "test"), "before": scores_of(records, "before", "test")}
    if warn:
        _warn_if_worse(validation["best"], validation["last"], best_epoch)
    if after:
        verdict = _verdict(test["backbone"], test["before"], after, best_epoch, start, ideas, trained, "unseen classes")
    else:
        known = (validation["backbone"], validation["before"], validation["best"])
        verdict = _verdict(*known, best_epoch, start, ideas, trained, "validation classes")
    outcome, sentence = verdict
    return {
        "split": "test",
        "chosen": chosen,
        "best_epoch": best_epoch,
        "outcome": outcome,
        "verdict": sentence,
        **test,
        "after": dict(after),
        "validation": validation if validation["best"] else {},
    }


def advice(model: ModelSettings, vectors: bool) -> str:
    """What to try if training did not help; ``vectors``: whether the data are feature vectors.

    >>> advice(ModelSettings(backbone="small", weights="none"), vectors=False)
    'Try more epochs, more classes or images, another method, another learning rate, or a pretrained backbone.'
    """
    own, scratch = model.backbone.startswith(MODULE), model.weights == "none" and not model.init
    ideas = ["more classes or items" if vectors else "more classes or images", "another method"]
    if scratch and model.backbone != "linear":
        ideas = ["more epochs", *ideas, "another learning rate"]
    else:
        ideas += ["a lower learning rate"] if vectors else ["a lower learning rate", "a stronger backbone"]
    if vectors:
        ideas.append("the features as they are")
    elif scratch and not own:
        ideas.append("a pretrained backbone")
    elif model.freeze_backbone and not own:
        ideas.append("the backbone without training (`nearkin index NAME PHOTOS`)")
    elif model.dim and not scratch and not model.freeze_backbone:
        ideas.append("the backbone without a head (a dim of 0)")
    return f"Try {', '.join(ideas[:-1])}, or {ideas[-1]}."


def _verdict(
    backbone: Scores,
    before: Scores,
    after: Scores,
    best_epoch: int,
    start: str,
    ideas: str,
    trained: bool,
    where: str,
) -> tuple[str, str]:
    """The outcome and a sentence about it.

    The outcome is "better" or "not better", "mixed" if MAP@R and Recall@1 disagree, and "unknown" if there is nothing
    to compare.
    """
    base = backbone or before
    if not base or not after:
        return "unknown", "Not evaluated: there is no test split and no validation split."
    name = "backbone alone" if backbone else "untrained network"
    if not trained:
        return "unknown", f"Not trained. Recall@1 on {where}: {after['recall@1']:.3f} ({name}: {base['recall@1']:.3f})."
    if best_epoch == 0:
        saved = start if backbone else "the untrained network"
        return "not better", (
            f"Training did not beat the {name} (Recall@1 on {where}: {base['recall@1']:.3f}). "
            f"The saved model is {saved} ({after['recall@1']:.3f}). {ideas}".rstrip()
        )
    figures = (
        f"Recall@1 on {where}: {base['recall@1']:.3f} → {after['recall@1']:.3f} ({name} → trained); "
        f"MAP@R: {base[PRIMARY]:.3f} → {after[PRIMARY]:.3f}."
    )
    gain, recall_gain = after[PRIMARY] - base[PRIMARY], after["recall@1"] - base["recall@1"]
    if gain > 0 > recall_gain:
        return "mixed", f"{figures} Mixed result: MAP@R rose, but Recall@1 fell."
    if gain > 0:
        return "better", figures
    if recall_gain > 0:
        return "mixed", f"{figures} Mixed result: Recall@1 rose, but MAP@R did not. {ideas}".rstrip()
    return "not better", f"{figures} Training did not help; the saved model is the trained one. {ideas}".rstrip()


def _warn_if_worse(best: Scores, last: Scores, best_epoch: int) -> None:
    if last and best and last[PRIMARY] < (1 - CLEARLY) * best[PRIMARY]:
        log.warning(
            "the last epoch (MAP@R %.3f on validation classes) is clearly worse than the best (%.3f, %s), which was "
            "kept; try a lower learning rate or fewer epochs",
            *(last[PRIMARY], best[PRIMARY], f"epoch {best_epoch}" if best_epoch else "before training"),
        )


def scores_of(records: Sequence[Mapping[str, Any]], kind: str, split: str) -> dict[str, float]:
    """The scores of the first record of a kind and split; empty if there is none."""
    found = (record for record in records if record["kind"] == kind and record["split"] == split)
    return _numbers(next(found, {}))


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in record.items() if isinstance(value, float)}
