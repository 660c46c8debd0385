"""Embeds a dataset into a Space, using the cache of backbone features.

Several views of an item are averaged as in Rippel et al.: Metric Learning with Adaptive Density Discrimination
(Magnet), 2016, section 4: "averaging the outputs of 16 random samples drawn from this augmentation distribution".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize as unit_length

from nearkin.data.dataset import Dataset
from nearkin.data.items import Items, Vectors
from nearkin.data.loader import Draw, input_batches, sequential, to_device
from nearkin.errors import UserError
from nearkin.models.feature_cache import FeatureCache, item_keys
from nearkin.models.model import EmbeddingModel, Head, device_of, evaluating
from nearkin.progress import track
from nearkin.space import Space

PIXELS_AT_ONCE = 400_000  # on a CPU, eight images of 224 × 224; with more, half of the time is spent allocating memory
ROWS_AT_ONCE = 4096  # read from the cache


def embed_dataset(
    model: EmbeddingModel | Head,
    dataset: Dataset,
    *,
    batch_size: int = 256,
    workers: int | None = None,
    views: int = 1,
    augment: str = "none",
    seed: int = 0,
    use_cache: bool = True,
    autocast: torch.dtype | None = None,
    head: bool = True,
) -> Space:
    """Embeds all items of a dataset in one pass, in evaluation mode and full precision, on the model's device.

    Args:
        model: an embedding model; or a head alone, for a dataset of features.
        dataset: the items to embed.
        batch_size: number of items per batch.
        workers: number of processes that read files; None: one per core, at most 16.
        views: with augmentation, the embedding of an item is the mean over that many random views. It is normalised
            again if the model's embeddings are. A view depends only on ``seed``, the item's index and the view's index.
        augment: the augmentation, one of ``nearkin.data.transforms.AUGMENTATIONS``.
        seed: random seed of the views.
        use_cache: whether to read backbone features from the cache, and to add them.
        autocast: compute in this lower precision instead; only without the cache and without augmentation.
        head: False: the space of the backbone's features instead, without the cache; only without augmentation.

    >>> from nearkin.models import ModelSpec
    >>> vectors = Vectors(np.eye(3, dtype=np.float32))
    >>> dataset = Dataset("three", vectors, np.array([0, 1, 1]), ["a", "b"])
    >>> space = embed_dataset(EmbeddingModel(ModelSpec("linear", dim=2, features=3)), dataset)
    >>> space.embeddings.shape, space.labels.tolist()
    (torch.Size([3, 2]), [0, 1, 1])
    >>> embed_dataset(EmbeddingModel(ModelSpec("linear", dim=2, features=3)), dataset, head=False).dim
    3
    """
    items = dataset.items
    _check_views(items, views, augment)
    if autocast is not None and (use_cache or augment != "none"):
        raise UserError("autocast needs use_cache=False and no augmentation, which are computed in full precision")
    if augment != "none":
        assert isinstance(model, EmbeddingModel)
        embeddings = _mean_of_views(model, items, batch_size, workers, views, augment, seed)
    elif use_cache and head and isinstance(model, EmbeddingModel):
        finish = lambda rows: embed_rows(model, rows)  # noqa: E731
        embeddings = _from_features(model, items, batch_size, workers, "embedding", model.spec.dim, finish)
    else:
        draws = sequential(len(items), batch_size)
        backbone = partial(model, head=False) if isinstance(model, EmbeddingModel) else nn.Identity()
        forward = model if head else backbone  # the items of a head alone are features
        embeddings = _finite(torch.cat([*_outputs(model, items, draws, forward, workers=workers, autocast=autocast)]))
    return space_of(embeddings.to(device_of(model)), dataset)


def cached_features(model: EmbeddingModel, items: Items, batch_size: int = 256, workers: int | None = None) -> Tensor:
    """Backbone features of all items, in order, without augmentation: (items, width) float32 on the CPU.

    >>> from nearkin.models import ModelSpec
    >>> model = EmbeddingModel(ModelSpec("mlp", dim=2, features=3))
    >>> cached_features(model, Vectors(np.ones((5, 3), dtype=np.float32))).shape
    torch.Size([5, 512])
    """
    return _from_features(model, items, batch_size, workers, "computing features", model.width, lambda rows: rows)


def embed_rows(model: EmbeddingModel, rows: Tensor) -> Tensor:
    """Applies the head in evaluation mode: features (items, width) to embeddings (items, dim) float32 on the CPU."""
    with evaluating(model), torch.no_grad():
        return apply(model.head, rows, device_of(model))


def apply(forward: Callable[[Tensor], Tensor], inputs: Tensor, device: torch.device) -> Tensor:
    """Applies ``forward`` to a batch on ``device``: (batch, dim) float32 on the CPU.

    >>> apply(lambda images: images.flatten(1).sum(1, keepdim=True), torch.ones(3, 1, 2, 2), torch.device("cpu"))
    tensor([[4.],
            [4.],
            [4.]])
    """
    return _finite(_forward(forward, inputs, device).cpu())


def _forward(forward: Callable[[Tensor], Tensor], inputs: Tensor, device: torch.device) -> Tensor:
    """Like `apply`, but the result stays on ``device``, and nothing waits for it."""
    at_once = len(inputs)
    if device.type == "cpu" and inputs.ndim == 4:
        at_once = max(1, PIXELS_AT_ONCE // (inputs.shape[2] * inputs.shape[3]))
    return torch.cat([forward(to_device(piece, device)).float() for piece in inputs.split(at_once)])


def _finite(outputs: Tensor) -> Tensor:
    invalid = int((~outputs.isfinite()).any(dim=1).sum())
    if invalid:
        raise UserError(
            f"the model returned NaN or infinity for {invalid:,} of {len(outputs):,} items; "
            "its weights may be damaged: use another model, or train it again"
        )
    return outputs


def space_of(embeddings: Tensor, dataset: Dataset) -> Space:
    """Combines embeddings of a whole dataset with its labels and masks, on the embeddings' device."""
    space = Space(
        embeddings=embeddings,
        labels=torch.from_numpy(dataset.labels),
        items=torch.arange(len(dataset)),
        is_query=None if dataset.is_query is None else torch.from_numpy(dataset.is_query),
        is_gallery=None if dataset.is_gallery is None else torch.from_numpy(dataset.is_gallery),
    )
    return space.to(embeddings.device)


def _outputs(
    model: EmbeddingModel | Head,
    items: Items,
    draws: Sequence[Draw],
    forward: Callable[[Tensor], Tensor],
    augment: str = "none",
    workers: int | None = None,
    what: str = "embedding",
    autocast: torch.dtype | None = None,
) -> Iterator[Tensor]:
    """Applies ``forward``, the model or a part of it, to every draw; yields (batch, width) float32 on its device."""
    device = device_of(model)
    preprocess = model.spec.preprocess if isinstance(model, EmbeddingModel) else None
    with evaluating(model):
        pin = device.type == "cuda"
        for inputs in track(input_batches(items, preprocess, draws, augment, workers, pin), what, len(draws)):
            # Not around the loop: the caller may need gradients between two batches.
            with torch.no_grad(), torch.autocast(device.type, autocast, enabled=autocast is not None):
                outputs = _forward(forward, _padded(inputs, len(draws[0].indices), device), device)
            yield outputs[: len(inputs)]


def _padded(inputs: Tensor, size: int, device: torch.device) -> Tensor:
    """A batch of always the same size: on CUDA, another size would be compiled or tuned again."""
    if device.type != "cuda" or len(inputs) == size:
        return inputs
    return inputs[torch.arange(size, device=inputs.device) % len(inputs)]


def _from_features(
    model: EmbeddingModel,
    items: Items,
    batch_size: int,
    workers: int | None,
    what: str,
    width: int,
    finish: Callable[[Tensor], Tensor],
) -> Tensor:
    """Applies ``finish`` to cached or computed features, batch by batch to save memory: (items, width)."""
    result = torch.empty(len(items), width)
    keys = item_keys(items)

    def fill_cached(cache: FeatureCache, indices: Sequence[int]) -> list[int]:
        """Fills in the cached rows; returns the indices of the others."""
        missing: list[int] = []
        for start in range(0, len(indices), ROWS_AT_ONCE):
            some = indices[start : start + ROWS_AT_ONCE]
            found, features = cache.get([keys[index] for index in some])
            if found:
                result[[some[n] for n in found]] = finish(features)
            cached = set(found)
            missing += [index for n, index in enumerate(some) if n not in cached]
        return missing

    with FeatureCache(model, active=any(keys)) as cache:
        if not (missing := fill_cached(cache, range(len(items)))):
            return result
        with cache.alone(keys):
            if not (missing := fill_cached(cache, missing)):  # another process may have computed some
                return result
            rest, draws = items.take(np.array(missing)), sequential(len(missing), batch_size)
            # Not a variable: the traceback of an error would keep it, and with it the model's mode and the workers.
            for draw, outputs in zip(
                draws, _outputs(model, rest, draws, model.features, workers=workers, what=what), strict=True
            ):
                features, some = _finite(outputs.cpu()), [missing[n] for n in draw.indices]
                cache.add([keys[index] for index in some], features)
                result[some] = finish(features)
    return result


def _mean_of_views(
    model: EmbeddingModel, items: Items, batch_size: int, workers: int | None, views: int, augment: str, seed: int
) -> Tensor:
    view_seeds = (np.random.SeedSequence(seed).generate_state(views, np.uint64) >> 2).tolist()
    draws = [
        replace(draw, seed=view_seed, place=int(draw.indices[0]))  # the loader adds an item's index to the seed
        for draw in sequential(len(items), batch_size)
        for view_seed in view_seeds
    ]
    sums = torch.zeros(len(items), model.spec.dim)
    for draw, outputs in zip(draws, _outputs(model, items, draws, model, augment, workers), strict=True):
        sums[draw.indices] += _finite(outputs.cpu())
    return sums / views if model.spec.normalize == "never" else unit_length(sums, dim=1)


def _check_views(items: Items, views: int, augment: str) -> None:
    if views < 1:
        raise UserError(f"views must be an integer >= 1, got {views}")
    if augment == "none" and views > 1:
        raise UserError(f'{views} views without augmentation are all the same; use augment="crop-flip" or views=1')
    if augment != "none" and isinstance(items, Vectors):
        raise UserError('feature vectors cannot be augmented; use augment="none" and views=1')
