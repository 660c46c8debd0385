"""Many items to vectors, batch by batch, always in evaluation mode and without a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from nearkin.data.dataset import Dataset
from nearkin.data.items import Items
from nearkin.data.loader import input_batches, sequential
from nearkin.data.transforms import Preprocess
from nearkin.models.model import device_of, evaluating
from nearkin.progress import track
from nearkin.space import Space

PIXELS_AT_ONCE = 400_000  # on a CPU, eight pictures of 224 × 224: with more, half of the time went into getting memory


def apply(forward: Callable[[Tensor], Tensor], inputs: Tensor, device: torch.device) -> Tensor:
    """What a model makes of a batch on ``device``: (batch, dim) float32 on the CPU.

    >>> apply(lambda pictures: pictures.flatten(1).sum(1, keepdim=True), torch.ones(3, 1, 2, 2), torch.device("cpu"))
    tensor([[4.],
            [4.],
            [4.]])
    """
    at_once = len(inputs)
    if device.type == "cpu" and inputs.ndim == 4:
        at_once = max(1, PIXELS_AT_ONCE // (inputs.shape[2] * inputs.shape[3]))
    pieces = (piece.to(device, non_blocking=True) for piece in inputs.split(at_once))
    return torch.cat([forward(piece).float().cpu() for piece in pieces])


def embed_items(
    model: nn.Module,
    items: Items,
    preprocess: Preprocess | None,
    batch_size: int = 256,
    workers: int | None = None,
    forward: Callable[[Tensor], Tensor] | None = None,
    what: str = "embedding",
) -> Tensor:
    """The model's output for every item, in order: (items, dim) float32 on the CPU.

    ``forward`` names another function of the model to call, for example the one that stops before the head.
    """
    return torch.cat(list(embedded_batches(model, items, preprocess, batch_size, workers, forward, what)))


def embedded_batches(
    model: nn.Module,
    items: Items,
    preprocess: Preprocess | None,
    batch_size: int = 256,
    workers: int | None = None,
    forward: Callable[[Tensor], Tensor] | None = None,
    what: str = "embedding",
) -> Iterator[Tensor]:
    """What `embed_items` gives, batch by batch."""
    device = device_of(model)
    draws = sequential(len(items), batch_size)
    with evaluating(model):
        for inputs in track(input_batches(items, preprocess, draws, workers=workers), what, len(draws)):
            # Not around the whole: whoever asks for the batches may need a gradient in between.
            with torch.no_grad(), torch.autocast(device.type, enabled=False):
                outputs = apply(forward or model, inputs, device)
            yield outputs


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
