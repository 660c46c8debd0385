"""A run that is part of a larger piece of work: begun, continued, or left alone if it is finished."""

from __future__ import annotations

from pathlib import Path

from nearkin.training.loop import resume, train
from nearkin.training.run import Run
from nearkin.training.settings import Settings


def carry_out(settings: Settings, folder: str | Path, tested: bool = True) -> Run:
    """The finished run of a folder, whatever is still to be done for it; ``tested`` as for `train`.

    >>> carry_out(Settings.read("config.toml"), "runs/one-of-many")  # doctest: +SKIP
    """
    run = Run(folder)
    if run.scores_file.is_file():
        return run
    if run.checkpoint_file.is_file() or run.model_folder.is_dir():
        return resume(folder, tested)
    return train(settings, folder, tested)
