"""The models of a method's seeds as one: their embeddings of an item side by side."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from nearkin.compare.result import COLUMNS
from nearkin.evaluation import evaluate
from nearkin.files import write_json
from nearkin.models import Embedder
from nearkin.space import Space
from nearkin.training import Run
from nearkin.training.prepare import load_splits
from nearkin.workflows import embed_everything, usual_device


def concatenated(spaces: Sequence[Space]) -> Space:
    """N embeddings (items, dim) of the same items as one (items, N · dim), scaled by 1/√N to keep unit length.

    >>> one = Space(torch.tensor([[0.6, 0.8]]), torch.tensor([0]), torch.tensor([0]))
    >>> concatenated([one, one, one, one]).embeddings
    tensor([[0.3000, 0.4000, 0.3000, 0.4000, 0.3000, 0.4000, 0.3000, 0.4000]])
    """
    joined = torch.cat([space.embeddings for space in spaces], dim=1) / math.sqrt(len(spaces))
    return replace(spaces[0], embeddings=joined)


def concatenated_scores(out: Path, method: str, seeds: int) -> dict[str, float]:
    """The scores of a method's models together on the test part; measured once, then read from ``out``."""
    file = out / "concatenated" / f"{method}-{seeds}.json"
    if not file.is_file():
        folders = [out / f"{method}-{seed}" for seed in range(seeds)]
        test = load_splits(Run(folders[0]).settings().data, seed=0).test  # the same for every seed
        assert test is not None
        space = concatenated([embed_everything(Embedder.load(folder), test) for folder in folders])
        scores = evaluate(space.to(usual_device())).scores
        write_json(file, {name: scores[name] for name in COLUMNS})
    found: dict[str, float] = json.loads(file.read_text(encoding="utf-8"))
    return found
