"""The start of a run on a pretrained backbone: its features, and a head initialised from them."""

from __future__ import annotations

import numpy as np

from nearkin.data import Dataset, ImageFiles, Vectors
from nearkin.models import EmbeddingModel
from nearkin.models.embed import cached_features
from nearkin.models.head_init import MAX_ITEMS, init_head
from nearkin.training.settings import Settings
from nearkin.training.shared import DatasetSplits, rows_of, shared_files


def start_from_features(
    model: EmbeddingModel, train: Dataset, splits: DatasetSplits, settings: Settings, batch_size: int
) -> DatasetSplits:
    """The splits and "train" as features of the backbone; initialises the head from them if ``head_init`` is "svd".

    If only the head needs the training features, they are computed for at most ``MAX_ITEMS`` items.
    """
    seed, workers = settings.training.seed, settings.data.processes
    all_needed = settings.model.freeze_backbone or any(
        split and train.knows_classes_of(split) for split in splits.values()
    )
    if not all_needed and len(train) > MAX_ITEMS:
        train = train.take(np.sort(np.random.default_rng(seed).choice(len(train), MAX_ITEMS, replace=False)))
    train, others = backbone_features(model, train, splits, batch_size, workers)
    if model.head.project and settings.model.head_init == "svd":
        assert isinstance(train.items, Vectors)
        init_head(model.head, train.items.values, seed)
    return {"train": train, **others}


def backbone_features(
    model: EmbeddingModel, first: Dataset, others: DatasetSplits, batch_size: int, workers: int | None
) -> tuple[Dataset, DatasetSplits]:
    """The splits of a run as features of the model's backbone, computed once and cached on disk."""
    # All files together, in one order: parallel runs with different splits then compute them only once.
    files = shared_files([first, *others.values()])
    file_features = cached_features(model, files, batch_size, workers) if len(files) else None

    def featured(split: Dataset) -> Dataset:
        if file_features is not None and isinstance(split.items, ImageFiles):
            values = file_features[rows_of(split.items, files)]
        else:
            values = cached_features(model, split.items, batch_size, workers)
        return split.with_items(Vectors(values.numpy()))

    return featured(first), {name: split and featured(split) for name, split in others.items()}
