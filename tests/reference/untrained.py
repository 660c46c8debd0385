"""Small models that were never trained, saved as a user's would be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from nearkin.data.transforms import Preprocess
from nearkin.models import Embedder, EmbeddingModel, ModelSpec

GREY = Preprocess(size=16, resize=16, channels=1, mean=(0.5,), std=(0.5,))
COLOURED = Preprocess(size=16, resize=16, channels=3, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


def save_untrained(folder: Path, seed: int = 0) -> Path:
    """From pictures to four dimensions."""
    torch.manual_seed(seed)
    Embedder(EmbeddingModel(ModelSpec("small", 4, "always", COLOURED))).save(folder)
    return folder


def small_model(normalize: str = "always") -> EmbeddingModel:
    """From grey pictures to eight dimensions."""
    torch.manual_seed(0)
    return EmbeddingModel(ModelSpec("small", 8, normalize, GREY))


def pixels(count: int = 5) -> torch.Tensor:
    """Grey pictures for `small_model`, all noise."""
    return torch.from_numpy(np.random.default_rng(0).integers(0, 255, (count, 1, 16, 16), dtype=np.uint8))
