"""Magnet loss.

Rippel, Paluri, Dollár, Bourdev: Metric Learning with Adaptive Density Discrimination, ICLR 2016, Eq. 4 and 5.

The paper calls Σ|r − μ|²/(N − 1) the variance σ² in Eq. 4 but σ̂ in Eq. 5. Eq. 4 is the default: it makes the loss
independent of scale, as the paper intends. ``variance="eq5"`` squares the sum once more, as public implementations do.
Means and variance come from the batch, and the gradient flows through them. No ε is needed, because the sum is computed
as a log-sum-exp.

``scaling`` multiplies all squared distances after the division by 2σ². It is our reading of the "global scaling" that
the paper tunes (Table 1) but does not explain. Eq. 4 itself has no scale: σ² is summed over all dimensions, so without
scaling even distant clusters count.

Two forms are not in the paper. ``hinge="soft"`` replaces max(0, x) by log(1 + eˣ), which never stops pushing. With
``centroids``, the impostors are all clusters of an index, as in Eq. 4: those of the batch by their means in the batch,
the others by their last known centroids, which get no gradient.

If all examples coincide with their means, the variance is 0 and the loss takes its limit: 0 for an example that differs
from the means of all other classes, α + log m for one that coincides with m of them. In Eq. 5 the sum is clamped to
1e-15, so that gradients stay finite.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from nearkin.errors import UserError, unknown_name
from nearkin.losses.base import Loss
from nearkin.losses.batch import (
    Labels,
    checked,
    checked_ids,
    full_precision,
    group_means,
    numbered,
    positive_number,
    reads_data,
)
from nearkin.losses.distances import COINCIDENT, widened
from nearkin.losses.registry import register_loss

VARIANCES = ("eq4", "eq5", "none")
REDUCTIONS = ("mean", "none")
HINGES = ("hard", "soft")


def magnet_loss(
    embeddings: Tensor,
    labels: Labels,
    clusters: Labels | None = None,
    alpha: float | Tensor = 1.0,
    variance: str = "eq4",
    reduction: str = "mean",
    hinge: str = "hard",
    scaling: float = 1.0,
    centroids: Tensor | None = None,
    centroid_labels: Labels | None = None,
) -> Tensor:
    """Pulls examples to the mean of their cluster and pushes them away from clusters of other classes.

    Args:
        embeddings: (batch, dim).
        labels: (batch,) integers.
        clusters: (batch,) integers, the cluster of each row; a cluster must not contain two classes. None makes each
            class one cluster.
        alpha: α in Eq. 5, the gap between clusters, in the units of scaled distances.
        variance: "eq4", which does not depend on scale, or "eq5", which divides by σ⁴ as public implementations do;
            "none" takes σ² = 1, for embeddings of unit length (use a ``scaling`` of about 20).
        reduction: "mean", or "none" for one loss per example.
        hinge: "hard" is max(0, x) as in the paper; "soft" is log(1 + eˣ).
        scaling: factor of squared distances in units of the variance; with a larger one, nearer clusters count more.
        centroids: (index, dim) the centroids of all clusters, as further impostors; ``clusters`` are its row numbers.
            The centroids of the batch's own clusters are not used. None: only the clusters of the batch.
        centroid_labels: (index,) integers, the classes of ``centroids``.

    Returns:
        A scalar, or (batch,) losses.

    >>> points = torch.tensor([[0.0], [1.0], [8.0], [9.0]])
    >>> near = magnet_loss(points, torch.tensor([0, 0, 1, 1]))
    >>> far = magnet_loss(points, torch.tensor([0, 1, 0, 1]))
    >>> bool(near < far)
    True
    """
    _check(alpha, variance, reduction, hinge, scaling)
    embeddings, labels = checked(embeddings, labels)
    clusters = labels if clusters is None else checked_ids(clusters, embeddings, "clusters")
    cluster, sizes = numbered(clusters)
    class_of = labels.new_zeros(len(sizes)).scatter(0, cluster, labels)
    if reads_data() and not torch.equal(class_of[cluster], labels):
        mixed = clusters[class_of[cluster] != labels][0]
        raise UserError(f"cluster {int(mixed)} contains items of two classes; give each class its own cluster numbers")
    with full_precision(embeddings):
        points = widened(embeddings)
        shift = points.detach().mean(dim=0)  # far from the origin, distances would lose precision
        points = points - shift
        means = group_means(points, cluster, sizes)
        absent = (labels[:, None] == class_of) | (sizes == 0)  # (batch, clusters)
        if centroids is not None:
            others, of_others = _checked_index(centroids, centroid_labels, points, clusters)
            in_batch = torch.zeros_like(of_others, dtype=torch.bool).index_fill(0, clusters, True)
            means = torch.cat([means, others - shift])
            absent = torch.cat([absent, (labels[:, None] == of_others) | in_batch], dim=1)
        lengths = points.square().sum(dim=1)
        rounding = (COINCIDENT * lengths.detach().amax()).clamp(min=torch.finfo(points.dtype).tiny)
        distances = lengths[:, None] + means.square().sum(dim=1) - 2 * points @ means.T  # squared
        distances = torch.where(distances > rounding, distances, 0.0)
        own = distances.gather(1, cluster[:, None]).squeeze(1)
        spread = (own.sum() / max(1, len(points) - 1)).clamp(min=rounding)
        if variance == "eq5":
            spread = spread.clamp(min=1e-15).square()
        elif variance == "none":
            spread = torch.ones_like(spread)
        spread = spread / scaling
        # Finite, so that the gradient of an example without impostors is 0, not NaN.
        lowest = torch.finfo(points.dtype).min
        impostors = (-distances / (2 * spread)).masked_fill(absent, lowest)
        overlaps = own / (2 * spread) + alpha + impostors.logsumexp(dim=1)
        losses = (torch.relu(overlaps) if hinge == "hard" else softplus(overlaps)).to(embeddings.dtype)
        return losses if reduction == "none" else losses.mean()


@register_loss("magnet")
class MagnetLoss(Loss):
    """Magnet loss (Rippel et al. 2016): separates clusters of different classes; a class can have several clusters.

    Needs a few examples of each of several neighbouring clusters (the paper: 4 of each of 12) from several classes, and
    their cluster numbers as ``clusters``. Without ``clusters``, each class is one cluster.

    >>> loss = MagnetLoss()(torch.randn(8, 4), torch.tensor([0, 0, 0, 0, 1, 1, 2, 2]), clusters=torch.arange(8) // 2)
    >>> loss.shape
    torch.Size([])
    """

    without_pairs = "it compares items with the means of clusters"
    changing = ("alpha",)

    def __init__(
        self,
        alpha: float = 1.0,
        variance: str = "eq4",
        reduction: str = "mean",
        hinge: str = "hard",
        scaling: float = 1.0,
    ) -> None:
        super().__init__()
        _check(alpha, variance, reduction, hinge, scaling)
        self.alpha: float | Tensor = alpha
        self.variance = variance
        self.reduction = reduction
        self.hinge = hinge
        self.scaling = scaling

    def compute(
        self,
        embeddings: Tensor,
        labels: Labels,
        clusters: Labels | None = None,
        centroids: Tensor | None = None,
        centroid_labels: Labels | None = None,
    ) -> Tensor:
        settings = (self.alpha, self.variance, self.reduction, self.hinge, self.scaling)
        return magnet_loss(embeddings, labels, clusters, *settings, centroids, centroid_labels)

    def extra_repr(self) -> str:
        names = ("alpha", "variance", "reduction", "hinge", "scaling")
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)


def _checked_index(
    centroids: Tensor, centroid_labels: Labels | None, points: Tensor, clusters: Tensor
) -> tuple[Tensor, Tensor]:
    """Checks the centroids of an index, (index, dim), and their classes, (index,); moves both to the batch's device."""
    if centroids.ndim != 2 or centroids.shape[1] != points.shape[1]:
        raise UserError(f"centroids must have shape (index, {points.shape[1]}), got {tuple(centroids.shape)}")
    if centroid_labels is None:
        raise UserError("centroids need their classes; pass centroid_labels")
    centroids = centroids.detach().to(points)
    classes = checked_ids(centroid_labels, centroids, "centroid_labels")
    if reads_data() and len(outside := clusters[(clusters < 0) | (clusters >= len(centroids))]):
        raise UserError(f"clusters must be rows of centroids, 0…{len(centroids) - 1}, got {int(outside[0])}")
    return centroids, classes


def _check(alpha: float | Tensor, variance: str, reduction: str, hinge: str, scaling: float) -> None:
    positive_number(scaling=scaling)
    if not isinstance(alpha, Tensor) and not math.isfinite(alpha):
        raise UserError(f"alpha must be a finite number, got {alpha}")
    for name, value, known in (
        ("variance", variance, VARIANCES),
        ("reduction", reduction, REDUCTIONS),
        ("hinge", hinge, HINGES),
    ):
        if value not in known:
            raise unknown_name(name, str(value), known)
