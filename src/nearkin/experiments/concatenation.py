"""Concatenates the embeddings of models trained with different seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from nearkin.data import Dataset
from nearkin.evaluation import evaluate
from nearkin.experiments.comparison_result import COLUMNS
from nearkin.experiments.runs import cached
from nearkin.models import Embedder, embed_dataset
from nearkin.space import Space
from nearkin.training import Run
from nearkin.training.devices import make_fabric
from nearkin.training.prepare import load_splits


def concatenated(spaces: Sequence[Space]) -> Space:
    """Joins N embeddings (items, dim) of the same items into (items, N · dim), scaled by 1/√N to keep unit length.

    >>> one = Space(torch.tensor([[0.6, 0.8]]), torch.tensor([0]), torch.tensor([0]))
    >>> concatenated([one, one, one, one]).embeddings
    tensor([[0.3000, 0.4000, 0.3000, 0.4000, 0.3000, 0.4000, 0.3000, 0.4000]])
    """
    joined = torch.cat([space.embeddings for space in spaces], dim=1) / math.sqrt(len(spaces))
    return replace(spaces[0], embeddings=joined)


def concatenated_scores(
    out: Path, row: str, seeds: int, dataset: Dataset | None = None, backbone: nn.Module | None = None
) -> dict[str, float]:
    """The test scores of a row's concatenated models; computed once, then read from ``out``.

    ``dataset``, ``backbone``: the user's own objects, if the settings cannot describe them.
    """
    runs = [Run(out / f"{row}-{seed}") for seed in range(seeds)]

    def measure() -> dict[str, float]:
        settings = runs[0].settings()
        test = load_splits(settings.data, 0, dataset).test  # the same for every seed
        assert test is not None
        device = make_fabric(settings.training).device
        models = (Embedder.load(run.folder, deepcopy(backbone)).to(device).model for run in runs)
        batch_size, workers = settings.training.batch_size, settings.data.processes
        spaces = [embed_dataset(model, test, batch_size=batch_size, workers=workers) for model in models]
        return evaluate(concatenated(spaces).to(device)).scores

    scores = cached(out / "concatenated", (row, [run.scores for run in runs]), measure)
    return {name: scores[name] for name in COLUMNS}
