"""The scores of the backbone alone, without training: the baseline that every method must beat."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import normalize

from nearkin.data import Dataset, Vectors
from nearkin.errors import UserError
from nearkin.evaluation import evaluate
from nearkin.models.embed import cached_features, space_of
from nearkin.space import Space
from nearkin.training.defaults import resolved
from nearkin.training.devices import make_fabric
from nearkin.training.prepare import build_model, load_splits
from nearkin.training.settings import Settings


def backbone_scores(
    settings: Settings, dataset: Dataset | None = None, backbone: nn.Module | None = None
) -> dict[str, float]:
    """Evaluates the untrained backbone of a run on the test split.

    ``dataset``, ``backbone``: the user's own objects, if the settings cannot describe them.

    >>> from nearkin.training.settings import make_settings
    >>> scores = backbone_scores(make_settings("glyphs:classes=8,per_class=4", "rank", {"device": "cpu"}))
    >>> 0 < scores["recall@1"] < 1
    True
    """
    return evaluate(backbone_space(settings, dataset, backbone)).scores


def backbone_space(settings: Settings, dataset: Dataset | None = None, backbone: nn.Module | None = None) -> Space:
    """The test split as features of the untrained backbone, scaled to unit length, without a head."""
    torch.manual_seed(settings.training.seed)  # for backbones with random weights
    splits = load_splits(settings.data, settings.training.seed, dataset)
    if splits.test is None:
        raise UserError(f"{settings.data.source} has no test split to evaluate; choose another split")
    settings = resolved(settings, splits, settings.make_method(), backbone)
    device = make_fabric(settings.training).device
    model = build_model(settings, splits.train, 1, backbone).to(device)
    features = cached_features(model, splits.test.items, settings.training.batch_size, settings.data.processes)
    return unit_space(splits.test.with_items(Vectors(features.numpy())), device)


def unit_space(features: Dataset, device: torch.device) -> Space:
    """The space of a dataset of feature vectors, scaled to unit length."""
    assert isinstance(features.items, Vectors)
    unit = normalize(torch.tensor(features.items.values), dim=1)
    return space_of(unit.to(device), features)
