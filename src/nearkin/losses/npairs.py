"""N-pairs loss.

Sohn: Improved Deep Metric Learning with Multi-class N-pair Loss Objective, 2016, written as in Song, Jegelka, Rathod,
Murphy: Deep Metric Learning via Facility Location, 2017, Eq. 3. Deviations: the regulariser is λ/2 times the mean
squared length, as in TensorFlow's function; Eq. 3 has λ times the mean length. The loss of a batch without positive
pairs or without negatives is 0, including the regulariser. If labels repeat among ``positives``, other items of the
anchor's class are ignored, as in Eq. 3; TensorFlow splits the anchor's target among them.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from nearkin.errors import UserError
from nearkin.losses.base import Loss
from nearkin.losses.batch import Labels, full_precision, not_negative
from nearkin.losses.distances import widened
from nearkin.losses.pairs import PairArguments, compared, masked_logsumexp, positive_columns
from nearkin.losses.registry import register_loss


def n_pairs_loss(
    embeddings: Tensor,
    labels: Labels,
    regularization: float = 0.002,
    positives: Tensor | None = None,
    **pairs: Unpack[PairArguments],
) -> Tensor:
    """A softmax over dot products: each positive pair against all negatives of its anchor.

    Without ``positives``, all ordered positive pairs of the batch are used. With ``positives``, row i is the only
    positive of embedding i, and an anchor's negatives are the positives of other classes.

    Args:
        embeddings: (batch, dim), not normalised in the paper.
        labels: (batch,) integers.
        regularization: λ in Eq. 3, the weight of the squared lengths.
        positives: (batch, dim), with the same labels as ``embeddings``.
        pairs: ``indices_tuple``, ``ref_emb``, ``ref_labels``; see `Loss.forward`.

    Returns:
        A scalar.

    >>> points = torch.tensor([[2.0, 0.0], [3.0, 0.0], [0.0, 3.0], [0.0, 2.0]])
    >>> near = n_pairs_loss(points, torch.tensor([0, 0, 1, 1]))
    >>> far = n_pairs_loss(points, torch.tensor([0, 1, 0, 1]))
    >>> bool(near < far)
    True
    """
    not_negative(regularization=regularization)
    if positives is not None:
        if pairs.get("indices_tuple") is not None or pairs.get("ref_emb") is not None:
            raise UserError("positives cannot be combined with indices_tuple or ref_emb; pass one of them")
        if positives.shape != embeddings.shape:
            shapes = f"{tuple(positives.shape)} and {tuple(embeddings.shape)}"
            raise UserError(f"positives and embeddings must have the same shape, got {shapes}")
        pairs = {"ref_emb": positives, "ref_labels": labels}
    batch = compared(embeddings, labels, **pairs)
    with full_precision(embeddings):
        # In float64, because the loss depends on differences between products that can be large.
        anchors = widened(batch.embeddings)
        partners = anchors if batch.references is None else widened(batch.references)
        similarity = anchors @ partners.T
        negative = batch.negative
        of_negatives = masked_logsumexp(similarity, negative)
        if positives is None:
            columns, valid = positive_columns(batch)
        else:
            columns = torch.arange(len(positives), device=embeddings.device)[:, None]
            valid = torch.ones_like(columns, dtype=torch.bool)
        # log(1 + Σ exp(S_ik − S_ij)) = softplus(log Σ exp S_ik − S_ij); linear where float64 cannot tell the difference
        terms = F.softplus(of_negatives[:, None] - similarity.gather(1, columns), threshold=40)
        data_term = terms.masked_fill(~valid, 0.0).sum() / valid.sum().clamp(min=1)
        vectors = anchors if batch.references is None else torch.cat([anchors, partners])
        loss = data_term + regularization / (2 * len(vectors)) * vectors.square().sum()
        return loss.where(valid.any() & negative.any(), 0.0).to(batch.embeddings.dtype)


@register_loss("npairs")
class NPairsLoss(Loss):
    """N-pairs loss (Sohn 2016): a softmax over dot products, each positive pair against all negatives of its anchor.

    Needs two or more items per class in a batch (the paper: two) and many classes, or the positive of each embedding as
    ``positives``. Embeddings are not normalised.

    >>> loss = NPairsLoss()(torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))
    >>> loss.shape
    torch.Size([])
    """

    def __init__(self, regularization: float = 0.002) -> None:
        super().__init__()
        not_negative(regularization=regularization)
        self.regularization = regularization

    def compute(
        self, embeddings: Tensor, labels: Labels, positives: Tensor | None = None, **pairs: Unpack[PairArguments]
    ) -> Tensor:
        return n_pairs_loss(embeddings, labels, self.regularization, positives, **pairs)

    def extra_repr(self) -> str:
        return f"regularization={self.regularization}"
