"""Small untrained models, saved like a user's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from nearkin.data.transforms import Preprocess
from nearkin.models import Embedder, EmbeddingModel, ModelSpec

GREY = Preprocess(size=16, resize=16, channels=1, mean=(0.5,), std=(0.5,))
COLOURED = Preprocess(size=16, resize=16, channels=3, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


def save_untrained(folder: Path, seed: int = 0) -> Path:
    """Saves a model from images to four dimensions."""
    torch.manual_seed(seed)
    Embedder(EmbeddingModel(ModelSpec("small", 4, "always", COLOURED))).save(folder)
    return folder


def small_model(normalize: str = "always") -> EmbeddingModel:
    """A model from grey images to eight dimensions."""
    torch.manual_seed(0)
    return EmbeddingModel(ModelSpec("small", 8, normalize, GREY))


def pixels(count: int = 5) -> torch.Tensor:
    """Grey noise images for `small_model`."""
    return torch.from_numpy(np.random.default_rng(0).integers(0, 255, (count, 1, 16, 16), dtype=np.uint8))
