"""The pairs that a loss compares: all pairs or those of a miner, within the batch or with references.

The arguments are those of pytorch-metric-learning, so its miners, its cross-batch memory and its distributed wrapper
work with every loss here that compares pairs. A pair counts once, even if a miner returns it several times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypedDict

import torch
from torch import Tensor

from nearkin.errors import UserError
from nearkin.losses.batch import Labels, checked, full_precision, reads_data
from nearkin.losses.distances import unit_length

Triplets = tuple[Tensor, Tensor, Tensor]  # rows of the anchors, of their positives, and of their negatives
IndicesTuple = Sequence[Tensor]  # pairs (anchors, positives, anchors, negatives), or Triplets
SMALL_ON_GPU = 1024  # up to this size, a GPU computes padded rows faster than it launches the search for short ones


class PairArguments(TypedDict, total=False):
    """The arguments that choose the pairs of a loss; see `compared`."""

    indices_tuple: IndicesTuple | None
    ref_emb: Tensor | None
    ref_labels: Labels | None


class Comparison(NamedTuple):
    """A checked batch and its pairs.

    Attributes:
        embeddings: (batch, dim), the anchors.
        labels: (batch,).
        references: (references, dim) embeddings that the anchors are compared with; None compares within the batch.
        reference_labels: (references,).
        chosen: (batch, references) masks of the positive and of the negative pairs; None compares all pairs.
        triplets: the triplets of a miner; None if it returned pairs, or without a miner.
    """

    embeddings: Tensor
    labels: Tensor
    references: Tensor | None
    reference_labels: Tensor
    chosen: tuple[Tensor, Tensor] | None
    triplets: Triplets | None

    @property
    def positive(self) -> Tensor:
        """(batch, references) mask of the positive pairs, computed at each access; an item is not its own partner."""
        if self.chosen is not None:
            return self.chosen[0]
        same = self.labels[:, None] == self.reference_labels
        return same.fill_diagonal_(False) if self.references is None else same

    @property
    def negative(self) -> Tensor:
        """(batch, references) mask of the negative pairs, computed at each access."""
        return self.labels[:, None] != self.reference_labels if self.chosen is None else self.chosen[1]

    @property
    def others(self) -> Tensor:
        """(references, dim) embeddings that the anchors are compared with."""
        return self.embeddings if self.references is None else self.references


def compared(
    embeddings: Tensor,
    labels: Labels,
    indices_tuple: IndicesTuple | None = None,
    ref_emb: Tensor | None = None,
    ref_labels: Labels | None = None,
    normalize: bool = False,
) -> Comparison:
    """Checks a batch and finds its pairs.

    Args:
        embeddings: (batch, dim).
        labels: (batch,) integers.
        indices_tuple: pairs (anchors, positives, anchors, negatives) or triplets (anchors, positives, negatives), as
            the miners of pytorch-metric-learning return them; None compares all pairs.
        ref_emb: (references, dim) embeddings to compare the anchors with; None compares within the batch.
        ref_labels: (references,) the labels of ``ref_emb``.
        normalize: scale embeddings and references to unit length.

    >>> batch = compared(torch.zeros(2, 3), [0, 1], ref_emb=torch.zeros(3, 3), ref_labels=[0, 1, 1])
    >>> batch.positive.int().tolist()
    [[1, 0, 0], [0, 1, 1]]
    """
    given, (embeddings, labels) = embeddings, checked(embeddings, labels)
    references, reference_labels = None, labels
    if ref_emb is None and ref_labels is not None:
        raise UserError("ref_labels need ref_emb; pass both")
    if ref_emb is not None and ref_emb is not given:
        references, reference_labels = _checked_references(ref_emb, ref_labels, embeddings, indices_tuple is not None)
    chosen, triplets = None, None
    if indices_tuple is not None:
        anchor, partner, anchor_of_negative, other = _checked_indices(indices_tuple, embeddings, references)
        shape = len(embeddings), len(embeddings if references is None else references)
        positive, negative = (torch.zeros(shape, dtype=torch.bool, device=embeddings.device) for _ in range(2))
        positive[anchor, partner] = True
        negative[anchor_of_negative, other] = True
        chosen = positive, negative
        if len(indices_tuple) == 3:
            triplets = anchor, partner, other
    if normalize:
        with full_precision(embeddings):
            embeddings, references = unit_length(embeddings), None if references is None else unit_length(references)
    return Comparison(embeddings, labels, references, reference_labels, chosen, triplets)


def positive_columns(batch: Comparison) -> tuple[Tensor, Tensor]:
    """The columns of each anchor's positives in ascending order, (batch, most positives), and a mask of the valid ones.

    Shorter rows are padded. Every row has all columns if shapes must not depend on the data (see `reads_data`), and for
    small batches on a GPU.

    >>> columns, valid = positive_columns(compared(torch.zeros(3, 2), [0, 0, 0]))
    >>> columns.tolist(), valid.all().item()
    ([[1, 2], [0, 2], [0, 1]], True)
    """
    width = len(batch.others)
    if not reads_data() or (batch.labels.is_cuda and width <= SMALL_ON_GPU):
        positive = batch.positive
        return torch.arange(width, device=positive.device).expand_as(positive), positive
    if batch.chosen is None and batch.references is None:
        return _others_of_class(batch.labels)
    positive = batch.positive
    descending = torch.arange(width, 0, -1, device=positive.device, dtype=torch.int32)
    found = descending.where(positive, 0).topk(max(1, int(positive.sum(dim=1).max())), dim=1)
    return found.indices, found.values > 0


def _others_of_class(labels: Tensor) -> tuple[Tensor, Tensor]:
    """`positive_columns` of all pairs of a batch, from the sorted labels instead of a (batch, batch) mask."""
    in_order, order = labels.sort(stable=True)
    start, end = torch.searchsorted(in_order, labels), torch.searchsorted(in_order, labels, right=True)
    most = max(1, int((end - start).max()) - 1)
    place = start[:, None] + torch.arange(most, device=labels.device)
    place += place >= order.argsort()[:, None]  # an item is not its own partner
    return order[place.clamp(max=len(labels) - 1)], place < end[:, None]


def masked_logsumexp(values: Tensor, mask: Tensor) -> Tensor:
    """log Σ exp over the masked values of each row, (batch,); about the lowest finite number for an empty row."""
    return values.masked_fill(~mask, torch.finfo(values.dtype).min).logsumexp(dim=1)


def refuse_pairs(
    why: str, indices_tuple: IndicesTuple | None, ref_emb: Tensor | None, ref_labels: Labels | None
) -> None:
    """Raises an error if pairs or references are passed to a loss that does not compare pairs.

    >>> refuse_pairs("it compares clusters", (torch.tensor([0]),) * 3, None, None)
    Traceback (most recent call last):
    nearkin.errors.UserError: this loss does not accept indices_tuple, because it compares clusters; remove the miner
    """
    if indices_tuple is not None:
        raise UserError(f"this loss does not accept indices_tuple, because {why}; remove the miner")
    if ref_emb is not None or ref_labels is not None:
        raise UserError(f"this loss does not accept ref_emb and ref_labels, because {why}; remove the memory")


def _checked_references(
    references: Tensor, labels: Labels | None, embeddings: Tensor, pairs_given: bool
) -> tuple[Tensor, Tensor]:
    if labels is None and not pairs_given:
        raise UserError("ref_emb needs labels; pass ref_labels, or indices_tuple with the pairs to compare")
    found, ids = checked(references, torch.zeros(len(references)) if labels is None else labels)
    if found.shape[1] != embeddings.shape[1]:
        raise UserError(f"ref_emb has {found.shape[1]} dimensions, but embeddings have {embeddings.shape[1]}")
    return found.to(embeddings), ids.to(embeddings.device)


def _checked_indices(indices: IndicesTuple, embeddings: Tensor, references: Tensor | None) -> tuple[Tensor, ...]:
    """Returns the rows and the columns of the positive pairs, then those of the negative pairs."""
    if not isinstance(indices, tuple | list) or len(indices) not in (3, 4):
        raise UserError(
            "indices_tuple must be pairs (anchors, positives, anchors, negatives) or triplets "
            "(anchors, positives, negatives), as a miner returns them"
        )
    found = tuple(torch.as_tensor(each, device=embeddings.device).long() for each in indices)
    if len(found) == 3:
        found = found[0], found[1], found[0], found[2]
    sizes = (len(embeddings), len(embeddings if references is None else references)) * 2
    for rows, partners, size in zip(found, (found[1], found[0], found[3], found[2]), sizes, strict=True):
        if rows.ndim != 1 or rows.shape != partners.shape:
            raise UserError("indices_tuple must contain lists of row numbers, with as many anchors as partners")
        if reads_data() and ((rows < 0) | (rows >= size)).any():
            raise UserError(f"indices_tuple contains rows outside 0…{size - 1}; pass the batch that was mined")
    return found
