"""Small models that were never trained, saved as a user's would be."""

from __future__ import annotations

from pathlib import Path

import torch

from nearkin.data.transforms import Preprocess
from nearkin.models import Embedder, EmbeddingModel, ModelSpec

COLOURED = Preprocess(size=16, resize=16, channels=3, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


def save_untrained(folder: Path, seed: int = 0) -> Path:
    """From pictures to four dimensions."""
    torch.manual_seed(seed)
    Embedder(EmbeddingModel(ModelSpec("small", 4, "always", COLOURED))).save(folder)
    return folder
