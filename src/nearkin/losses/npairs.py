"""N-pairs loss.

Sohn: Improved Deep Metric Learning with Multi-class N-pair Loss Objective, 2016, written as in Song, Jegelka, Rathod,
Murphy: Deep Metric Learning via Facility Location, 2017, Eq. 3. Deviations: the regulariser is λ/2 times the mean
SQUARED length, as in TensorFlow's function, where Eq. 3 prints λ times the mean length; a batch without positive pairs
or without negatives has the loss 0, regulariser included. Where labels repeat among pairs given apart, this follows
Eq. 3: others of the anchor's class are left out, where TensorFlow shares the anchor's target among them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nearkin.errors import UserError
from nearkin.losses.batch import checked, comparable, full_precision, not_negative, same_class_masks, zero_loss
from nearkin.losses.distances import widened


def n_pairs_loss(
    embeddings: Tensor, labels: Tensor, regularization: float = 0.002, positives: Tensor | None = None
) -> Tensor:
    """Softmax over dot products: every positive pair against all negatives of its anchor at once.

    Without ``positives`` the pairs are all ordered positive pairs of the batch. With them, row i of ``positives`` is
    the only partner of embedding i, and the negatives of an anchor are the positives of other classes.

    Args:
        embeddings: (batch, dim), not normalised in the paper.
        labels: (batch,) integers.
        regularization: λ in Eq. 3, holds the vectors short.
        positives: (batch, dim), of the same labels.

    Returns:
        A scalar.

    >>> points = torch.tensor([[2.0, 0.0], [3.0, 0.0], [0.0, 3.0], [0.0, 2.0]])
    >>> near = n_pairs_loss(points, torch.tensor([0, 0, 1, 1]))
    >>> far = n_pairs_loss(points, torch.tensor([0, 1, 0, 1]))
    >>> bool(near < far)
    True
    """
    not_negative(regularization=regularization)
    embeddings, labels = checked(embeddings, labels)
    positive, negative = same_class_masks(labels)
    vectors = partners = widened(embeddings)  # the loss lives on differences of what may be large products
    if positives is not None:
        if positives.shape != embeddings.shape:
            raise UserError(f"positives {tuple(positives.shape)} do not match embeddings {tuple(embeddings.shape)}")
        partners = widened(checked(positives.to(embeddings), labels)[0])
        positive = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        vectors = torch.cat([vectors, partners])
    if not comparable(positive, negative):
        return zero_loss(embeddings)
    with full_precision(embeddings):
        similarity = vectors[: len(labels)] @ partners.T
        of_negatives = similarity.where(negative, -math.inf).logsumexp(dim=1)
        anchor, partner = positive.nonzero(as_tuple=True)
        # log(1 + Σ exp(S_ik − S_ij)) = −log σ(S_ij − log Σ exp S_ik)
        data_term = -F.logsigmoid(similarity[anchor, partner] - of_negatives[anchor]).mean()
        mean_squared_length = vectors.square().sum() / len(vectors)
        return (data_term + regularization / 2 * mean_squared_length).to(embeddings.dtype)


class NPairsLoss(nn.Module):
    """N-pairs loss (Sohn 2016): softmax over dot products, every positive pair against all negatives of its anchor.

    Needs two or more items per class in a batch and many classes; two per class is the paper's. Instead, partners may
    be given apart, as ``positives``. Embeddings are not normalised.

    >>> loss = NPairsLoss()(torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))
    >>> loss.shape
    torch.Size([])
    """

    def __init__(self, regularization: float = 0.002) -> None:
        super().__init__()
        not_negative(regularization=regularization)
        self.regularization = regularization

    def forward(self, embeddings: Tensor, labels: Tensor, positives: Tensor | None = None) -> Tensor:
        return n_pairs_loss(embeddings, labels, self.regularization, positives)

    def extra_repr(self) -> str:
        return f"regularization={self.regularization}"
