"""Deep spectral clustering loss (DSCL).

Law, Urtasun, Zemel: Deep Spectral Clustering Learning, ICML 2017, Eq. 7–10.

Deviations: the gradient is the exact one, Eq. 8; the paper's Algorithm 1 uses half of it (Eq. 9). Singular values below
max(batch, dim) · ε times the largest one are treated as rounding errors of the input and count as 0. ε is that of the
input's dtype, or of float32 for half precision. Everything is computed in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.losses.base import Loss
from nearkin.losses.batch import Labels, check_finite, checked, full_precision, group_means
from nearkin.losses.closed_form import closed_form
from nearkin.losses.distances import widened
from nearkin.losses.registry import register_loss


def spectral_clustering_loss(embeddings: Tensor, labels: Labels) -> Tensor:
    """k − tr(C F F⁺): how far the column space of the embeddings is from containing the classes.

    F are the embeddings, C is the projection onto the indicators of the batch's k classes, and F F⁺ is the projection
    onto the columns of F, the solution of relaxed k-means. The loss is in 0…k. It is 0 if every class indicator is a
    linear function of the embeddings, for example if dim ≥ batch and the rows are linearly independent. Invertible
    linear maps of the embeddings do not change it.

    Args:
        embeddings: (batch, dim), neither centred nor normalised in the paper.
        labels: (batch,) integers.

    Returns:
        A scalar.

    >>> points = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 3.0], [0.0, 3.0]])
    >>> spectral_clustering_loss(points, torch.tensor([0, 0, 1, 1])).item()
    0.0
    >>> spectral_clustering_loss(points, torch.tensor([0, 1, 0, 1])).item()
    1.0
    """
    embeddings, labels = checked(embeddings, labels)
    with full_precision(embeddings):
        return _spectral_clustering(embeddings, labels)


@register_loss("spectral")
class SpectralClusteringLoss(Loss):
    """Deep spectral clustering loss, DSCL (Law et al. 2017): solves one relaxed clustering problem for the whole batch.

    Needs large batches with more items than dimensions, and about as many classes as dimensions or more (the paper:
    1,260 random items, 100 dimensions).

    >>> loss = SpectralClusteringLoss()(torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))
    >>> loss.shape
    torch.Size([])
    """

    without_pairs = "it compares the batch as a whole with its classes"
    without_graph = "it reads data on the host to choose a factorisation"

    def compute(self, embeddings: Tensor, labels: Labels) -> Tensor:
        return spectral_clustering_loss(embeddings, labels)


@closed_form
def _spectral_clustering(embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    basis, inverse = _factors(widened(embeddings), torch.finfo(embeddings.dtype).eps)
    _, of_class, sizes = labels.unique(return_inverse=True, return_counts=True)
    means = group_means(basis, of_class, sizes)
    overlap = (means.T * sizes) @ means  # Uᵀ C U
    loss = (len(sizes) - overlap.trace()).clamp(min=0)
    largest = torch.finfo(embeddings.dtype).max  # reached if embeddings are almost 0
    gradient = torch.addmm((-2 * means @ inverse)[of_class], basis, 2 * overlap @ inverse)
    return loss.to(embeddings.dtype), gradient.clamp_(-largest, largest).to(embeddings.dtype)


def _factors(points: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """U (batch, rank), an orthonormal basis of the columns of F (batch, dim), and W (rank, dim) with (F⁺)ᵀ = U W.

    Uses Cholesky QR, which is many times faster than an SVD. After one pass, U is orthogonal up to ε κ², where κ is the
    condition number of F and ε that of float64. After two passes it is orthogonal to machine precision, as long as κ is
    well below ε^−½ (Yamamoto et al. 2015).
    """
    rounding, work_eps = max(points.shape) * eps, torch.finfo(points.dtype).eps
    one_pass, two_passes = (0.1 * eps / work_eps) ** 0.5, min(1 / rounding, 0.1 * work_eps**-0.5)
    if points.shape[0] >= points.shape[1]:
        identity = torch.eye(points.shape[1], dtype=points.dtype, device=points.device)
        basis, inverse = points, identity
        for enough in (min(one_pass, 1 / rounding), two_passes):
            upper, failed = torch.linalg.cholesky_ex(basis.T @ basis, upper=True)
            step = torch.linalg.solve_triangular(upper, identity, upper=True)
            basis, inverse = basis @ step, inverse @ step
            condition = torch.where(failed == 0, points.norm() * inverse.norm(), torch.nan).item()
            if condition < enough:
                return basis, inverse.T
            if not condition < two_passes:
                break
    check_finite(points)  # the step was not checked if it runs on a GPU (see `unchecked`)
    left, singular, right = torch.linalg.svd(points, full_matrices=False)
    kept = singular > rounding * singular[0]
    return left * kept, right * torch.where(kept, 1 / singular, 0.0)[:, None]
