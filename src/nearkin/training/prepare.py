"""From settings to things: the parts of the data, the model, and the features of a frozen backbone."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nearkin.data import (
    Dataset,
    ImageArray,
    ImageFiles,
    Splits,
    Vectors,
    load_dataset,
    make_splits,
    without_unreadable,
)
from nearkin.data.hierarchy import collapse_training
from nearkin.data.images import Unreadable, listed
from nearkin.data.sources import is_dataset_name
from nearkin.data.splits import usual_split
from nearkin.errors import UserError
from nearkin.methods import Method
from nearkin.models import EmbeddingModel, ModelSpec
from nearkin.models.backbones import find_backbone, preprocess_of
from nearkin.models.feature_cache import cached_features
from nearkin.models.weights import load_weights
from nearkin.training.settings import DataSettings, ModelSettings, Settings, TrainingSettings
from nearkin.training.shared import Parts, rows_of, shared_files

log = logging.getLogger("nearkin")

FROM_SCRATCH = 1e-3  # the learning rate of a network without pretrained weights
BACKBONE_SHARE = 0.1  # of the head's learning rate, for a pretrained backbone
LEAST_EPOCHS, MOST_EPOCHS = 10, 100  # when nothing is said; small data are passed over more often, to see in all
LEAST_ITEMS = 100_000
ENOUGH_ITEMS = 4  # for each dimension, to find the main directions of features; of fewer, all directions are kept
EVALUATIONS = 20  # on the way, about
PATIENCE = 5  # evaluations without improvement


def load_splits(settings: DataSettings, seed: int) -> Splits:
    """The parts of the data, without unreadable images (they are listed in one warning)."""
    dataset, unreadable = without_unreadable(load_data(settings), settings.unreadable)
    report_unreadable(unreadable)
    validation = None if settings.validation < 0 else settings.validation
    splits = make_splits(dataset, settings.split or None, validation, seed, settings.split_seed)
    return collapse_training(splits, seed) if settings.collapse_pairs else splits


def load_data(settings: DataSettings) -> Dataset:
    """All of the data, unreadable images included."""
    return load_dataset(settings.source, settings.root or None, settings.check_counts)


def report_unreadable(unreadable: list[Unreadable]) -> None:
    if unreadable:
        log.warning("going on without images that cannot be read (%d):\n  %s", len(unreadable), listed(unreadable))


def resolved(settings: Settings, splits: Splits, method: Method) -> Settings:
    """The settings with every default that depends on the data filled in, as they are written to the run."""
    data, model, training = settings.data, settings.model, settings.training
    train = splits.train
    # Absolute, so that a run can be resumed and evaluated from anywhere.
    data = replace(data, source=absolute(data.source), root=absolute(data.root), split=data.split or usual_split(train))
    model = replace(model, weights=absolute(model.weights))
    if not data.augment:
        data = replace(data, augment="crop-flip" if isinstance(train.items, ImageFiles) else "none")
    if not model.backbone:
        model = replace(model, backbone=_usual_backbone(train))
    if not model.weights:
        model = replace(model, weights="imagenet" if find_backbone(model.backbone).imagenet else "none")
    if not model.normalize:
        # Pretrained features are told apart by their directions: on new classes their lengths only blur them.
        lengths_count = method.normalize == "never" and not is_pretrained(model)
        model = replace(model, normalize="never" if lengths_count else method.normalize.replace("never", "always"))
    if not model.image_size and model.backbone == "small" and isinstance(train.items, ImageArray):
        model = replace(model, image_size=max(train.items.pixels.shape[1:3]))
    pretrained = is_pretrained(model)
    if model.freeze_batch_norm is None:
        model = replace(model, freeze_batch_norm=pretrained)
    if not model.head_init:
        model = replace(model, head_init="svd" if pretrained else "random")
    if not training.batch_size:
        training = replace(training, batch_size=_usual_batch(method, train))
    if model.dim < 0:
        model = replace(model, dim=_usual_dim(model, train, method, training.batch_size))
    if training.epochs < 0:
        unguarded = pretrained and splits.validation is None  # nothing would notice that it becomes worse
        training = replace(training, epochs=LEAST_EPOCHS if unguarded else usual_epochs(len(train)))
    head_alone = model.freeze_backbone or model.backbone == "linear"
    rate = method.frozen_rate if head_alone else method.finetune_rate
    rate = rate if pretrained else FROM_SCRATCH
    training = _usual_training(training, rate, pretrained, has_validation=splits.validation is not None)
    if data.validation < 0:
        data = replace(data, validation=splits.held_out)
    return replace(settings, data=data, model=model, training=training)


def is_pretrained(model: ModelSettings) -> bool:
    """Whether the backbone knows something before training: it has weights, or the data are features already."""
    return model.weights != "none" or model.backbone == "linear"


def usual_epochs(items: int) -> int:
    """Passes over the training items when nothing is said: as many steps for small data as for larger ones.

    >>> usual_epochs(1_000), usual_epochs(5_000), usual_epochs(60_000)
    (100, 20, 10)
    """
    return min(max(LEAST_EPOCHS, math.ceil(LEAST_ITEMS / items)), MOST_EPOCHS)


def _usual_training(
    training: TrainingSettings, rate: float, pretrained: bool, has_validation: bool
) -> TrainingSettings:
    """Fills in what is left open; ``rate`` is the usual one of the head."""
    usual: dict[str, Any] = {}
    usual["learning_rate"] = rate = training.learning_rate or rate
    if not training.backbone_learning_rate:
        usual["backbone_learning_rate"] = BACKBONE_SHARE * rate if pretrained else rate
    if not training.loss_learning_rate:
        usual["loss_learning_rate"] = rate
    if training.evaluate_every < 0:
        usual["evaluate_every"] = max(1, training.epochs // EVALUATIONS)
    if not training.keep:
        usual["keep"] = "best-on-validation" if has_validation and training.evaluate_every else "last"
    if training.patience < 0:
        usual["patience"] = PATIENCE if usual.get("keep", training.keep) == "best-on-validation" else 0
    return replace(training, **usual)


def with_warmup(settings: Settings, steps: int) -> Settings:
    """The settings with a warm-up, if that is left open; ``steps`` are those of an epoch."""
    training = settings.training
    if training.warmup_steps >= 0:
        return settings
    warmup = training.epochs * steps // 20 if is_pretrained(settings.model) else 0
    return replace(settings, training=replace(training, warmup_steps=warmup))


def _usual_dim(model: ModelSettings, train: Dataset, method: Method, batch_size: int) -> int:
    """128; on a pretrained backbone 512, or all features where these or the items are few; a multiple of the slices."""
    dim = 128
    if is_pretrained(model):
        items = train.items
        if isinstance(items, Vectors):
            width = items.values.shape[1]
        else:
            images = preprocess_of(model.backbone, model.image_size or None)
            width = EmbeddingModel(ModelSpec(model.backbone, 0, preprocess=images, head="none")).width
        dim = min(512, width) if len(items) >= ENOUGH_ITEMS * 512 else width
    dim = min(dim, method.most_dimensions(batch_size))
    return max(method.slices, dim - dim % method.slices)


def build_model(settings: Settings, train: Dataset, slices: int) -> EmbeddingModel:
    """An untrained head of so many slices on a backbone with the wanted weights; call it under a fixed torch seed."""
    choice = settings.model
    if slices > 1 and not choice.dim:
        raise UserError(f"{slices} learners share the head's dimensions, so they need a head; use --dim 512")
    head = "linear" if choice.dim else "none"
    spec = ModelSpec(choice.backbone, choice.dim, choice.normalize, slices=slices, head=head)
    if isinstance(train.items, Vectors):
        spec = replace(spec, features=train.items.values.shape[1])
    else:
        channels = train.items.channels if isinstance(train.items, ImageArray) else 3
        spec = replace(spec, preprocess=preprocess_of(choice.backbone, choice.image_size or None, channels))
    model = EmbeddingModel(spec, bool(choice.freeze_batch_norm))
    load_weights(model.backbone, choice.backbone, choice.weights)
    if isinstance(train.items, Vectors):
        values = torch.from_numpy(train.items.values)
        model.standardise.mean.copy_(values.mean(dim=0))
        deviation = values.std(dim=0)
        # A feature that is constant in training says nothing; scaled up, it would drown all others at test.
        model.standardise.std.copy_(deviation.where(deviation > 1e-6 * values.abs().amax(dim=0), 1.0))
    return model


def backbone_features(
    model: EmbeddingModel, first: Dataset, others: Parts, batch_size: int, workers: int | None
) -> tuple[Dataset, Parts]:
    """The parts of a run as features of the model's backbone, computed once and kept on disk."""
    # All files together, in one order: of runs side by side that divide them differently, one computes for all.
    files = shared_files([first, *others.values()])
    of_files = cached_features(model, files, batch_size, workers) if len(files) else None

    def featured(part: Dataset) -> Dataset:
        if of_files is not None and isinstance(part.items, ImageFiles):
            values = of_files[rows_of(part.items, files)]
        else:
            values = cached_features(model, part.items, batch_size, workers)
        return part.with_items(Vectors(values.numpy()))

    return featured(first), {name: part and featured(part) for name, part in others.items()}


def absolute(path: str) -> str:
    """A path that leads somewhere made absolute; names such as ``cub200`` or ``imagenet`` stay as they are."""
    leads_somewhere = path and not is_dataset_name(path) and Path(path).expanduser().exists()
    return str(Path(path).expanduser().absolute()) if leads_somewhere else path


def _usual_batch(method: Method, train: Dataset) -> int:
    """The method's usual size, or the largest half, quarter, … of it that it can draw from these data."""
    usual, smallest = method.usual_batch, 2 * method.batch_unit
    halves = (usual >> halvings for halvings in range(usual.bit_length()))
    problem: UserError | None = None
    sizes = [*(half - half % method.batch_unit for half in halves if half > smallest), smallest]
    for size in [size for size in sizes if size <= len(train)] or [smallest]:
        try:
            method.sampler(train.labels, size, seed=0)
        except UserError as error:
            # That of the largest size, not of the last resort; its frames would keep alive all that they see.
            problem = problem or error.with_traceback(None)
        else:
            if size < method.usual_batch:
                log.info("batches of %d items: the data cannot fill larger ones", size)
            return size
    assert problem is not None
    raise problem


def _usual_backbone(train: Dataset) -> str:
    if isinstance(train.items, Vectors):
        return "mlp"
    if isinstance(train.items, ImageArray) and max(train.items.pixels.shape[1:3]) <= 64:
        return "small"
    return "resnet50"
