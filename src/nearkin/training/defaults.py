"""Defaults that depend on the data, the backbone and the method."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import Any

from torch import nn

from nearkin.data import Dataset, ImageArray, ImageFiles, LazyImages, Splits, Vectors
from nearkin.data.splits import default_split
from nearkin.errors import UserError
from nearkin.messages import REPEATED
from nearkin.methods import Method
from nearkin.models import EmbeddingModel, ModelSpec
from nearkin.models.backbones import find_backbone, preprocess_of
from nearkin.models.saved import read_spec
from nearkin.training.prepare import absolute
from nearkin.training.settings import ModelSettings, Settings, TrainingSettings

log = logging.getLogger("nearkin")

FROM_SCRATCH = 1e-3  # the learning rate of a network without pretrained weights
BACKBONE_SHARE = 0.1  # a pretrained backbone's learning rate, relative to the head's
MIN_EPOCHS, MAX_EPOCHS = 10, 100
ITEMS_TO_SEE = 100_000  # during training, about: small datasets get more epochs
ITEMS_PER_DIM = 4  # needed to find the main directions of the features; with fewer items, all directions are kept
EVALUATIONS = 20  # during training, approximately
SMALL = 64  # pixels; smaller images need no large network
PATIENCE = 5  # evaluations without improvement


def resolved(settings: Settings, splits: Splits, method: Method, backbone: nn.Module | None = None) -> Settings:
    """Fills in every default that depends on the data; the result is written to the run.

    ``backbone``: the user's own module.
    """
    data, model, training = settings.data, settings.model, settings.training
    train = splits.train
    # Absolute, so that a run can be resumed and evaluated from any working directory.
    data = replace(
        data, source=absolute(data.source), root=absolute(data.root), split=data.split or default_split(train)
    )
    model = replace(model, weights=absolute(model.weights), init=absolute(model.init))
    if model.init:
        model = _from_init(model, read_spec(model.init))
    if not data.augment:
        data = replace(data, augment="crop-flip" if isinstance(train.items, ImageFiles | LazyImages) else "none")
    if not model.backbone:
        model = replace(model, backbone=_default_backbone(train))
    if not model.weights and backbone is not None:
        model = replace(model, weights="own")
    if backbone is not None and not model.image_size and not isinstance(train.items, Vectors):
        model = replace(model, image_size=preprocess_of(backbone).size)  # a run cannot look it up by name later
    if not model.weights:
        model = replace(model, weights="imagenet" if find_backbone(model.backbone).imagenet else "none")
    if not model.normalize:
        # Pretrained features differ by direction; on new classes their lengths are only noise.
        keep_lengths = method.normalize == "never" and not is_pretrained(model)
        model = replace(model, normalize="never" if keep_lengths else method.normalize.replace("never", "always"))
    if model.backbone == "small" and not model.image_size and (side := _side(train)):
        model = replace(model, image_size=side if isinstance(train.items, ImageArray) else min(side, SMALL))
    pretrained = is_pretrained(model)
    if model.freeze_batch_norm is None:
        model = replace(model, freeze_batch_norm=pretrained)
    if not model.head_init:
        model = replace(model, head_init="svd" if pretrained else "random")
    if not training.batch_size:
        training = replace(training, batch_size=_default_batch_size(method, train))
    if model.dim < 0:
        model = replace(model, dim=_default_dim(model, train, method, training.batch_size, backbone))
    if training.epochs < 0:
        unguarded = pretrained and splits.validation is None  # no validation score would show that it gets worse
        training = replace(training, epochs=MIN_EPOCHS if unguarded else default_epochs(len(train)))
    head_alone = model.freeze_backbone or model.backbone == "linear"
    rate = method.frozen_rate if head_alone else method.finetune_rate
    rate = rate if pretrained else FROM_SCRATCH
    training = _default_training(training, rate, pretrained, has_validation=splits.validation is not None)
    if data.validation < 0:
        data = replace(data, validation=splits.held_out)
    own = method.settings()
    return replace(settings, data=data, model=model, training=training, method=method.name, method_settings=own)


def _from_init(model: ModelSettings, trained: ModelSpec) -> ModelSettings:
    """Takes unset values from the model that training starts from."""
    usual: dict[str, Any] = {"weights": model.weights or "none"}
    usual["backbone"] = model.backbone or trained.backbone
    usual["normalize"] = model.normalize or trained.normalize
    if model.dim < 0 and trained.head != "none":
        usual["dim"] = trained.dim
    if not model.head_init and trained.head != "none":
        usual["head_init"] = "init"
    if not model.image_size and trained.preprocess is not None:
        usual["image_size"] = trained.preprocess.size
    return replace(model, **usual)


def is_pretrained(model: ModelSettings) -> bool:
    """Whether the backbone is useful before training: it has weights, or the data are already features."""
    return model.weights != "none" or model.backbone == "linear" or bool(model.init)


def default_epochs(items: int) -> int:
    """The default number of epochs: small datasets get as many steps as larger ones.

    >>> default_epochs(1_000), default_epochs(5_000), default_epochs(60_000)
    (100, 20, 10)
    """
    return min(max(MIN_EPOCHS, math.ceil(ITEMS_TO_SEE / items)), MAX_EPOCHS)


def _default_training(
    training: TrainingSettings, rate: float, pretrained: bool, has_validation: bool
) -> TrainingSettings:
    """Fills in unset values; ``rate`` is the default learning rate of the head."""
    usual: dict[str, Any] = {}
    usual["learning_rate"] = rate = training.learning_rate or rate
    if not training.backbone_learning_rate:
        usual["backbone_learning_rate"] = BACKBONE_SHARE * rate if pretrained else rate
    if not training.loss_learning_rate:
        usual["loss_learning_rate"] = rate
    usual["evaluate_every"] = evaluation_interval(training)
    if not training.keep:
        usual["keep"] = "best-on-validation" if has_validation and training.evaluate_every else "last"
    if training.patience < 0:
        usual["patience"] = PATIENCE if usual.get("keep", training.keep) == "best-on-validation" else 0
    return replace(training, **usual)


def evaluation_interval(training: TrainingSettings) -> int:
    """Epochs between evaluations, with the default filled in.

    >>> evaluation_interval(TrainingSettings(epochs=100)), evaluation_interval(TrainingSettings(evaluate_every=3))
    (5, 3)
    """
    return training.evaluate_every if training.evaluate_every >= 0 else max(1, training.epochs // EVALUATIONS)


def with_warmup(settings: Settings, steps: int) -> Settings:
    """Fills in the number of warm-up steps if it is unset; ``steps``: steps per epoch."""
    training = settings.training
    if training.warmup_steps >= 0:
        return settings
    warmup = training.epochs * steps // 20 if is_pretrained(settings.model) else 0
    return replace(settings, training=replace(training, warmup_steps=warmup))


def _default_dim(
    model: ModelSettings, train: Dataset, method: Method, batch_size: int, backbone: nn.Module | None
) -> int:
    """128, or 512 on a pretrained backbone (all features if they or the items are few); a multiple of the slices."""
    dim = 128
    if is_pretrained(model):
        items = train.items
        if isinstance(items, Vectors):
            width = items.values.shape[1]
        else:
            images = preprocess_of(model.backbone if backbone is None else backbone, model.image_size or None)
            width = EmbeddingModel(
                ModelSpec(model.backbone, 0, preprocess=images, head="none"), backbone=backbone
            ).width
        dim = min(512, width) if len(items) >= ITEMS_PER_DIM * 512 else width
    dim = min(dim, method.most_dimensions(batch_size))
    return max(method.slices, dim - dim % method.slices)


def _default_batch_size(method: Method, train: Dataset) -> int:
    """The method's usual size, or the largest half, quarter, … of it that the sampler can draw from the data."""
    usual, smallest = method.usual_batch, 2 * method.batch_unit
    halves = (usual >> halvings for halvings in range(usual.bit_length()))
    problem: UserError | None = None
    sizes = [*(half - half % method.batch_unit for half in halves if half > smallest), smallest]
    few = max(2, len(train) - len(train) % method.batch_unit)
    for size in [size for size in sizes if size <= len(train)] or [few]:
        try:
            method.sampler(train.labels, size, seed=0)
        except UserError as error:
            # Keep the error of the largest size, without its traceback, which would keep every local alive.
            problem = problem or error.with_traceback(None)
        else:
            if size < method.usual_batch:
                text = "%s: batch size reduced to %d: the dataset is too small for more"
                log.info(text, method.name, size, extra=REPEATED)
            return size
    assert problem is not None
    raise problem


def _default_backbone(train: Dataset) -> str:
    if isinstance(train.items, Vectors):
        return "mlp"
    return "small" if 0 < _side(train) <= SMALL else "resnet50"


def _side(train: Dataset) -> int:
    """The longer side of images in memory, or of the first image of a lazy dataset; 0 for other items."""
    return max(train.items.size) if isinstance(train.items, ImageArray | LazyImages) else 0
