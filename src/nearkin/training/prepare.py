"""Makes the splits and the model that settings describe."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from nearkin.data import Dataset, ImageArray, Splits, Vectors, load_dataset, make_splits, without_unreadable
from nearkin.data.hierarchy import collapse_training
from nearkin.data.images import Unreadable
from nearkin.data.sources import is_dataset_name
from nearkin.data.unreadable import listed
from nearkin.errors import UserError
from nearkin.models import EmbeddingModel, ModelSpec, init_from
from nearkin.models.backbones import find_backbone, preprocess_of
from nearkin.models.backbones.own import MODULE
from nearkin.models.weights import check_weights_file, load_weights
from nearkin.training.settings import DataSettings, ModelSettings, Settings

log = logging.getLogger("nearkin")


def load_splits(settings: DataSettings, seed: int, dataset: Dataset | None = None) -> Splits:
    """The splits of the data, without unreadable images, which one warning lists.

    ``dataset``: data that settings cannot describe, such as a torch dataset.
    """
    dataset, unreadable = without_unreadable(load_data(settings) if dataset is None else dataset, settings.unreadable)
    report_unreadable(unreadable)
    validation = None if settings.validation < 0 else settings.validation
    splits = make_splits(dataset, settings.split or None, validation, seed, settings.split_seed)
    return collapse_training(splits, seed) if settings.collapse_pairs else splits


def load_data(settings: DataSettings) -> Dataset:
    """All data, including unreadable images."""
    return load_dataset(settings.source, settings.root or None, settings.check_counts)


def report_unreadable(unreadable: list[Unreadable]) -> None:
    if unreadable:
        log.warning("skipped images that cannot be read (%d):\n  %s", len(unreadable), listed(unreadable))


def check_model(model: ModelSettings) -> None:
    """Raises for an unknown backbone or a missing weights file, before any data are read."""
    if model.backbone and not model.backbone.startswith(MODULE):
        find_backbone(model.backbone)
    if model.weights not in ("", "none", "imagenet", "own"):
        check_weights_file(Path(model.weights).expanduser())


def build_model(settings: Settings, train: Dataset, slices: int, backbone: nn.Module | None = None) -> EmbeddingModel:
    """A backbone with its weights and an untrained head of ``slices`` slices; set the torch seed first.

    ``backbone``: the user's own module, instead of a named one.
    """
    choice = settings.model
    if backbone is None and choice.backbone.startswith(MODULE):
        raise UserError(
            f"the backbone is your own module, {choice.backbone.removeprefix(MODULE)}; pass it again: backbone=..."
        )
    if slices > 1 and not choice.dim:
        raise UserError(f"the method divides the head among {slices} learners, so it needs a head; use dim=512")
    head = "linear" if choice.dim else "none"
    spec = ModelSpec(choice.backbone, choice.dim, choice.normalize, slices=slices, head=head)
    if isinstance(train.items, Vectors):
        spec = replace(spec, features=train.items.values.shape[1])
    else:
        named = choice.backbone if backbone is None else backbone
        channels = train.items.channels if isinstance(train.items, ImageArray) else 3
        spec = replace(spec, preprocess=preprocess_of(named, choice.image_size or None, channels))
    model = EmbeddingModel(spec, bool(choice.freeze_batch_norm), backbone=backbone)
    if backbone is None or choice.weights != "own":
        load_weights(model.backbone, choice.backbone, choice.weights)
    if isinstance(train.items, Vectors):
        values = torch.from_numpy(train.items.values)
        model.standardise.mean.copy_(values.mean(dim=0))
        deviation = values.std(dim=0)
        # A feature that is constant in training has no information; scaled up, it would dominate all others at test.
        model.standardise.std.copy_(deviation.where(deviation > 1e-6 * values.abs().amax(dim=0), 1.0))
    if choice.init:
        init_from(model, choice.init)
    return model


def absolute(path: str) -> str:
    """Makes existing paths absolute; names such as ``cub200`` or ``imagenet`` stay as they are."""
    exists = path and not is_dataset_name(path) and Path(path).expanduser().exists()
    return str(Path(path).expanduser().absolute()) if exists else path
