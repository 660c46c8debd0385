"""Trains once more on all classes, with the settings and the number of epochs chosen on held-out classes.

The first run evaluates the settings on classes it never saw. The second trains on every class, so none are left to
evaluate it on: its scores, card and report repeat the verdict of the first run.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Unpack

from nearkin.data.summary import counted
from nearkin.training.card import replace_verdict
from nearkin.training.loop import train
from nearkin.training.objects import Objects
from nearkin.training.run import NewRun, Run
from nearkin.training.settings import Settings

log = logging.getLogger("nearkin")


def fit_all(run: Run, folder: str | Path | None = None, **objects: Unpack[Objects]) -> Run:
    """Trains a finished run again on all classes, with the same settings.

    Args:
        run: the finished run.
        folder: folder of the new run; by default next to the first, with ``-all`` added to its name.
        objects: the objects that the run was trained with, unchanged.

    >>> fit_all(Run("runs/photos-rank")).folder  # doctest: +SKIP
    PosixPath('runs/photos-rank-all')
    """
    scores = run.scores
    settings = settings_for_all(run.settings(), scores["best_epoch"])
    log.info("training again on all classes: %s", counted(scores["best_epoch"], "epoch"))
    beside = run.folder.with_name(f"{run.folder.name}-all")
    final = train(settings, folder or NewRun(beside), **objects)
    own = final.scores
    verdict = f"Trained on all classes. With the same settings on the training classes alone: {scores['verdict']}"
    final.write_scores(own | {"outcome": scores["outcome"], "verdict": verdict, "measured_by": run.folder.name})
    replace_verdict(final, own["verdict"], verdict)
    return final


def settings_for_all(settings: Settings, best_epoch: int) -> Settings:
    """The same settings on all classes, with the same learning rates up to the best epoch.

    >>> from nearkin.training.settings import make_settings
    >>> again = settings_for_all(make_settings("glyphs", "rank", {"epochs": 20}), best_epoch=7)
    >>> again.data.split, again.training.epochs, again.training.stop_after
    ('all', 20, 7)
    """
    epochs = settings.training.epochs if best_epoch else 0
    return settings.changed(
        data={"split": "all", "validation": 0.0},
        training={"epochs": epochs, "stop_after": best_epoch, "keep": "last", "patience": 0, "evaluate_every": 0},
    )
