"""A dataset to a Space: the one way, with the features of the backbone kept on disk behind it.

Several views of an item are averaged as in Rippel et al.: Metric Learning with Adaptive Density Discrimination
(Magnet), 2016, 4: "averaging the outputs of 16 random samples drawn from this augmentation distribution".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize as unit_length

from nearkin.data.dataset import Dataset
from nearkin.data.items import Items, Vectors
from nearkin.data.loader import Draw, input_batches, sequential
from nearkin.errors import UserError
from nearkin.models.feature_cache import FeatureCache, item_keys
from nearkin.models.model import EmbeddingModel, Head, device_of, evaluating
from nearkin.progress import track
from nearkin.space import Space

PIXELS_AT_ONCE = 400_000  # on a CPU, eight images of 224 × 224: with more, half of the time went into getting memory
ROWS_AT_ONCE = 4096  # of the cache


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
) -> Space:
    """Everything in a dataset embedded in one pass, in evaluation mode and full precision, where the model is.

    Args:
        model: an embedding model; or a head alone, for a dataset of features.
        batch_size: items that are prepared and embedded at once.
        workers: processes that read files; None: as many as there are cores, up to 16.
        views: with augmentation, the embedding of an item is the mean over that many random views of it, of unit length
            again where the model's are. A view depends on ``seed``, the item's place and the view's number alone.
        augment: how a view differs from the item, one of ``nearkin.data.transforms.AUGMENTATIONS``.
        use_cache: whether features of the backbone are read from disk, and kept there.

    >>> from nearkin.models import ModelSpec
    >>> vectors = Vectors(np.eye(3, dtype=np.float32))
    >>> dataset = Dataset("three", vectors, np.array([0, 1, 1]), ["a", "b"])
    >>> space = embed_dataset(EmbeddingModel(ModelSpec("linear", dim=2, features=3)), dataset)
    >>> space.embeddings.shape, space.labels.tolist()
    (torch.Size([3, 2]), [0, 1, 1])
    """
    items = dataset.items
    _check_views(items, views, augment)
    if augment != "none":
        assert isinstance(model, EmbeddingModel)
        embeddings = _mean_of_views(model, items, batch_size, workers, views, augment, seed)
    elif use_cache and isinstance(model, EmbeddingModel):
        finish = lambda rows: embed_rows(model, rows)  # noqa: E731
        embeddings = _from_features(model, items, batch_size, workers, "embedding", model.spec.dim, finish)
    else:
        draws = sequential(len(items), batch_size)
        embeddings = torch.cat([*_outputs(model, items, draws, model, workers=workers)])
    return space_of(embeddings.to(device_of(model)), dataset)


def cached_features(model: EmbeddingModel, items: Items, batch_size: int = 256, workers: int | None = None) -> Tensor:
    """What the backbone gives for every item without augmentation, in order: (items, width) float32 on the CPU.

    >>> from nearkin.models import ModelSpec
    >>> model = EmbeddingModel(ModelSpec("mlp", dim=2, features=3))
    >>> cached_features(model, Vectors(np.ones((5, 3), dtype=np.float32))).shape
    torch.Size([5, 512])
    """
    return _from_features(model, items, batch_size, workers, "computing features", model.width, lambda rows: rows)


def embed_rows(model: EmbeddingModel, rows: Tensor) -> Tensor:
    """The head's work alone, at test: features (items, width) to embeddings (items, dim) float32 on the CPU."""
    with evaluating(model), torch.no_grad():
        return apply(model.head, rows, device_of(model))


def apply(forward: Callable[[Tensor], Tensor], inputs: Tensor, device: torch.device) -> Tensor:
    """What a model makes of a batch on ``device``: (batch, dim) float32 on the CPU.

    >>> apply(lambda images: images.flatten(1).sum(1, keepdim=True), torch.ones(3, 1, 2, 2), torch.device("cpu"))
    tensor([[4.],
            [4.],
            [4.]])
    """
    at_once = len(inputs)
    if device.type == "cpu" and inputs.ndim == 4:
        at_once = max(1, PIXELS_AT_ONCE // (inputs.shape[2] * inputs.shape[3]))
    pieces = (piece.to(device, non_blocking=True) for piece in inputs.split(at_once))
    outputs = torch.cat([forward(piece).float().cpu() for piece in pieces])
    unusable = int((~outputs.isfinite()).any(dim=1).sum())
    if unusable:
        raise UserError(
            f"the model gives NaN or infinity for {unusable:,} of {len(outputs):,} items; its weights are damaged; "
            "use another model, or train it again"
        )
    return outputs


def space_of(embeddings: Tensor, dataset: Dataset) -> Space:
    """Embeddings of a whole dataset, on their device, together with what the dataset knows about its items."""
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
) -> Iterator[Tensor]:
    """What ``forward``, the model or a part of it, gives for every draw: (batch, width) float32 on the CPU."""
    device = device_of(model)
    preprocess = model.spec.preprocess if isinstance(model, EmbeddingModel) else None
    with evaluating(model):
        for inputs in track(input_batches(items, preprocess, draws, augment, workers), what, len(draws)):
            # Not around the whole: whoever asks for the batches may need a gradient in between.
            with torch.no_grad(), torch.autocast(device.type, enabled=False):
                outputs = apply(forward, inputs, device)
            yield outputs


def _from_features(
    model: EmbeddingModel,
    items: Items,
    batch_size: int,
    workers: int | None,
    what: str,
    width: int,
    finish: Callable[[Tensor], Tensor],
) -> Tensor:
    """(items, width): what ``finish`` makes of the features, found or computed, so that only few are held at once."""
    result = torch.empty(len(items), width)
    keys = item_keys(items)

    def lacking(rows: FeatureCache, places: Sequence[int]) -> list[int]:
        """Fills in the rows that are known; returns the places of the others."""
        unknown: list[int] = []
        for start in range(0, len(places), ROWS_AT_ONCE):
            some = places[start : start + ROWS_AT_ONCE]
            found, features = rows.get([keys[place] for place in some])
            if found:
                result[[some[place] for place in found]] = finish(features)
            known = set(found)
            unknown += [place for n, place in enumerate(some) if n not in known]
        return unknown

    with FeatureCache(model, active=any(keys)) as rows:
        if not (places := lacking(rows, range(len(items)))):
            return result
        with rows.alone(keys):
            if not (places := lacking(rows, places)):
                return result
            rest, draws = items.take(np.array(places)), sequential(len(places), batch_size)
            outputs = _outputs(model, rest, draws, model.features, workers=workers, what=what)
            for draw, features in zip(draws, outputs, strict=True):
                some = [places[place] for place in draw.indices]
                rows.add([keys[place] for place in some], features)
                result[some] = finish(features)
    return result


def _mean_of_views(
    model: EmbeddingModel, items: Items, batch_size: int, workers: int | None, views: int, augment: str, seed: int
) -> Tensor:
    view_seeds = (np.random.SeedSequence(seed).generate_state(views, np.uint64) >> 2).tolist()
    draws = [
        replace(draw, seed=view_seed, place=int(draw.indices[0]))  # the loader adds an item's place to the seed
        for draw in sequential(len(items), batch_size)
        for view_seed in view_seeds
    ]
    sums = torch.zeros(len(items), model.spec.dim)
    for draw, outputs in zip(draws, _outputs(model, items, draws, model, augment, workers), strict=True):
        sums[draw.indices] += outputs
    return sums / views if model.spec.normalize == "never" else unit_length(sums, dim=1)


def _check_views(items: Items, views: int, augment: str) -> None:
    if views < 1:
        raise UserError(f"views={views} must be at least 1")
    if augment == "none" and views > 1:
        raise UserError(f'without augmentation all {views} views are the same; use augment="crop-flip" or views=1')
    if augment != "none" and isinstance(items, Vectors):
        raise UserError('feature vectors have no random views; use augment="none" and views=1')
