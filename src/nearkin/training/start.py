"""Where a run on a pretrained backbone starts: its features, and a head made from them."""

from __future__ import annotations

import numpy as np

from nearkin.data import Dataset, Vectors
from nearkin.models import EmbeddingModel
from nearkin.models.head_init import MOST_ITEMS, init_head
from nearkin.training.prepare import backbone_features
from nearkin.training.settings import Settings
from nearkin.training.shared import Parts


def start_from_features(
    model: EmbeddingModel, train: Dataset, parts: Parts, settings: Settings, batch_size: int
) -> Parts:
    """The parts, and "train", as features of the backbone; the model's head is made from them if the settings say so.

    Of training items that the backbone will be trained on, no more are taken than the head needs.
    """
    seed, workers = settings.training.seed, settings.data.processes
    all_needed = settings.model.freeze_backbone or any(part and train.knows_classes_of(part) for part in parts.values())
    if not all_needed and len(train) > MOST_ITEMS:
        train = train.take(np.sort(np.random.default_rng(seed).choice(len(train), MOST_ITEMS, replace=False)))
    train, others = backbone_features(model, train, parts, batch_size, workers)
    if model.head.project and settings.model.head_init == "svd":
        assert isinstance(train.items, Vectors)
        init_head(model.head, train.items.values, seed)
    return {"train": train, **others}
