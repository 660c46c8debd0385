"""Averaging at test: the embedding of an item is the mean over several random views of it.

Rippel et al.: Metric Learning with Adaptive Density Discrimination (Magnet), 2016, 4: "averaging the outputs of 16
random samples drawn from this augmentation distribution".
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize as unit_length

from nearkin.data.items import Items, Vectors
from nearkin.data.loader import input_batches, sequential
from nearkin.data.transforms import Preprocess
from nearkin.errors import UserError
from nearkin.models.embed import apply, embed_items
from nearkin.models.model import EmbeddingModel, device_of, evaluating
from nearkin.progress import track


def embed_views(
    model: EmbeddingModel,
    items: Items,
    preprocess: Preprocess | None,
    views: int,
    augment: str,
    seed: int = 0,
    batch_size: int = 256,
    workers: int | None = None,
    what: str = "embedding views",
) -> Tensor:
    """The mean embedding of ``views`` random views of every item, in order: (items, dim) float32 on the CPU.

    Of unit length again if the model's embeddings are at test. A view depends on the seed, the item's number and the
    view's, on nothing else. One view without augmentation is what `embed_items` gives.

    Args:
        views: how many; 10 or 16 in papers.
        augment: how a view differs from the item, one of ``AUGMENTATIONS``.

    >>> from nearkin.data.items import ImageArray
    >>> from nearkin.models.model import ModelSpec
    >>> grey = Preprocess(size=16, resize=20, channels=1, mean=(0.5,), std=(0.5,))
    >>> model = EmbeddingModel(ModelSpec("small", dim=4, preprocess=grey))
    >>> pictures = ImageArray(np.zeros((3, 16, 16), dtype=np.uint8))
    >>> embed_views(model, pictures, grey, views=2, augment="crop-flip").shape
    torch.Size([3, 4])
    """
    _check(items, views, augment)
    if augment == "none":
        return embed_items(model, items, preprocess, batch_size, workers, what=what)
    view_seeds = (np.random.SeedSequence(seed).generate_state(views, np.uint64) >> 2).tolist()
    draws = [
        replace(draw, seed=view_seed, place=int(draw.indices[0]))  # the loader adds an item's place to the seed
        for draw in sequential(len(items), batch_size)
        for view_seed in view_seeds
    ]
    inputs = track(input_batches(items, preprocess, draws, augment, workers), what, len(draws))
    device = device_of(model)
    sums = torch.zeros(len(items), model.spec.dim)
    with evaluating(model), torch.no_grad():
        for draw, batch in zip(draws, inputs, strict=True):
            sums[draw.indices] += apply(model, batch, device)
    return sums / views if model.spec.normalize == "never" else unit_length(sums, dim=1)


def _check(items: Items, views: int, augment: str) -> None:
    if views < 1:
        raise UserError(f"views={views} must be at least 1")
    if augment == "none" and views > 1:
        raise UserError(f"without augmentation all {views} views are the same; choose an augmentation or one view")
    if augment != "none" and isinstance(items, Vectors):
        raise UserError("feature vectors have no random views; take one view, which is the usual")
