"""What the commands do with a trained model: measure it, turn data into vectors."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from nearkin.data import Dataset, without_unreadable
from nearkin.data.images import Unreadable
from nearkin.data.items import ImageFiles, Items
from nearkin.data.sources import load_labelled_or_flat
from nearkin.data.splits import BY_CLASSES
from nearkin.errors import UserError, unknown_name
from nearkin.evaluation import EvaluationResult, confidence_intervals, diagnostics
from nearkin.files import atomic_path
from nearkin.methods import Method
from nearkin.models import load_model
from nearkin.models.pretrained import network_name
from nearkin.training import DataSettings, Run
from nearkin.training.prepare import load_data, load_splits, report_unreadable
from nearkin.training.scoring import concentrations, embed_everything, embed_parts, part_to_measure, score_space

log = logging.getLogger("nearkin")
PARTS = ("train", "validation", "test", "all")


def evaluate_model(
    model: str | Path,
    data: str | Path | None = None,
    part: str | None = None,
    recall_at: Sequence[int] = (1, 2, 4, 8),
    root: str | Path | None = None,
    check_counts: bool = True,
    views: int = 1,
    diagnose: bool = False,
    clustering: str | None = "kmeans",
    attributes: bool = False,
    weights: str | Path | None = None,
) -> EvaluationResult:
    """The scores of a model on a part of its own run's data (by default test), or of other data (by default all).

    With several ``views`` the embedding of an item is the mean over so many, augmented as in training, by crops and
    flips for a model without its run; ``diagnose`` adds how the space is used, ``attributes`` how far neighbours share
    what the data know besides the class. A run that was trained on pairs of classes is measured by the classes
    themselves. ``model`` and ``weights`` are what `load_model` takes.
    """
    part = part or ("all" if data else "test")
    if part not in PARTS:
        raise unknown_name("part", part, PARTS)
    run = Run(model)
    dataset, trained_on, unchanged = _part(run, data, part, root, check_counts)
    if attributes and not dataset.attributes:
        raise UserError(
            f"{dataset.name} knows no attributes of its items; give them as further columns of a .csv or .npz"
        )
    space, known = embed_parts(load_model(model, weights), dataset, trained_on, views, _augmentation(run, views))
    method = _method(run) if run.config.is_file() else None
    found = score_space(space, method, known, recall_at, clustering, dataset.protocol)
    spread = diagnostics(space) if diagnose else None
    if spread:
        found.scores.update(spread.scores)
    try:
        intervals = confidence_intervals(found, space, over="classes")
    except UserError as error:  # queries of one class have scores, but no interval
        log.warning("without intervals: %s", error)
        intervals = {}
    # What training measured before it began, in the same way; of other data it is `nearkin evaluate NAME --data DATA`.
    alike = run.scores.is_file() and part == "test" and unchanged and views == 1 and clustering == "kmeans"
    backbone = run.read_scores().get("backbone", {}) if alike else {}
    return replace(
        found,
        split=part,
        intervals=intervals,
        backbone={name: value for name, value in backbone.items() if name in found.scores},
        attributes=concentrations(space, dataset) if attributes else {},
        diagnostics=spread,
    )


def embed_to_file(
    model: str | Path,
    data: str | Path,
    out: str | Path,
    root: str | Path | None = None,
    unreadable: str = "skip",
    check_counts: bool = True,
    weights: str | Path | None = None,
) -> tuple[int, int]:
    """Writes vectors, labels and names of everything in ``data``; returns how many and how long they are."""
    out = Path(out)
    if out.suffix != ".npz":
        raise UserError(f"vectors are written as .npz, not {out.name}; use --out {out.with_suffix('.npz')}")
    embedder = load_model(model, weights)
    dataset, bad = without_unreadable(load_labelled_or_flat(data, root, check_counts), unreadable)
    report_unreadable(bad)
    vectors = embed_everything(embedder, dataset).embeddings.cpu().numpy()
    labels = np.array([dataset.classes[label] for label in dataset.labels])
    with atomic_path(out) as partial:
        np.savez(partial, vectors=vectors, labels=labels, names=np.array(dataset.items.names()))
    return vectors.shape


def sample_items(model: str | Path, most: int = 10) -> Items | None:
    """Some items of the run's own data that can be read, drawn from all over them; None where there are none.

    No more are read than it takes to find so many: to check all, as training does, would take minutes.
    """
    run = Run(model)
    if not run.config.is_file():
        return None
    try:
        items = load_data(run.settings().data).items
    except (UserError, OSError) as error:
        log.warning("compared without real items: %s", error)
        return None
    order = np.random.default_rng(0).permutation(len(items)).tolist()
    readable = (n for n in order if not (isinstance(items, ImageFiles) and isinstance(items.picture(n), Unreadable)))
    chosen = list(islice(readable, most))
    if not chosen:
        log.warning("compared without real items: none of the run's %d can be read", len(items))
        return None
    return items.take(np.array(chosen))


def _augmentation(run: Run, views: int) -> str:
    if views == 1:
        return "none"
    augment = run.settings().data.augment if run.config.is_file() else "crop-flip"
    if views > 1 and augment == "none":
        raise UserError("this run was trained without augmentation, so all views would be the same; leave --views out")
    return augment


def _method(run: Run) -> Method | None:
    """The run's method, whose read-out has scores of its own; None where it is not known here."""
    try:
        return run.method()
    except UserError as error:  # one that was registered elsewhere, for instance
        log.warning("the scores of the method's own read-out are left out: %s", error)
        return None


def _part(
    run: Run, data: str | Path | None, part: str, root: str | Path | None, check_counts: bool
) -> tuple[Dataset, Dataset | None, bool]:
    """The items to measure; those that were trained on, where these are others of the same classes; and whether the
    data are the run's own as they were when it began.
    """
    if not run.folder.exists() and network_name(run.folder) is None:
        raise UserError(f"there is no folder {run.folder}; give a run folder or a model folder")
    seed, settings = 0, DataSettings(source=str(data), check_counts=check_counts, validation=0.0)
    if run.config.is_file():
        own, seed = run.settings().data, run.settings().training.seed
        # Other data are halved as the run's own were: they may be a copy of these.
        halved = replace(settings, split=own.split if own.split in BY_CLASSES else "", split_seed=own.split_seed)
        settings = own if data is None else halved
    elif data is None:
        raise UserError(f"{run.folder} is not a run folder, so it has no data of its own; name some with --data")
    if root is not None:
        settings = replace(settings, root=str(root))
    if part == "all":
        settings, part = replace(settings, split="all", validation=0.0), "train"
    splits = load_splits(settings, seed)
    unchanged = data is None and run.same_data(splits.digest())
    if data is None and not unchanged and settings.split != "all":
        log.warning("the data are not what they were when this run began: test classes may have been trained on")
    if getattr(splits, part) is None:
        raise UserError(f"{settings.source} has no {part} part here; choose another with --part")
    measured, trained_on = part_to_measure(splits, part)
    return measured, trained_on if data is None else None, unchanged
