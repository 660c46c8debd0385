"""Proxy-NCA loss: each class is represented by a learnt proxy.

Movshovitz-Attias, Toshev, Leung, Ioffe, Singh: No Fuss Distance Metric Learning using Proxies, ICCV 2017, Eq. 4 with
static assignment. As in the paper, embeddings and proxies have unit length, and distances are squared. By default, the
denominator sums over all proxies, as in most implementations; the loss is then a softmax. The paper excludes the proxy
of the item's own class (``positive_in_denominator=False``), so its loss can be negative. With a single class the loss
is 0.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nearkin.losses.base import Loss
from nearkin.losses.batch import Labels, checked_for_classes, full_precision, positive_number, zero_loss
from nearkin.losses.distances import unit_length
from nearkin.losses.registry import register_loss


def proxy_nca_loss(
    embeddings: Tensor,
    labels: Labels,
    proxies: Tensor,
    scale: float = 1.0,
    positive_in_denominator: bool = True,
) -> Tensor:
    """Pulls embeddings to the proxy of their class and pushes them away from all other proxies.

    Args:
        embeddings: (batch, dim); scaled to unit length here.
        labels: (batch,) integers in 0…classes−1.
        proxies: (classes, dim); scaled to unit length here.
        scale: factor of the squared distances; 1 in the paper.
        positive_in_denominator: sum over all proxies in the denominator; False excludes the proxy of the item's own
            class, as in the paper.

    Returns:
        A scalar.

    >>> points, proxies = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.eye(2)
    >>> proxy_nca_loss(points, torch.tensor([0, 1]), proxies, positive_in_denominator=False).item()
    -2.0
    """
    positive_number(scale=scale)
    embeddings, labels, proxies = checked_for_classes(embeddings, labels, proxies)
    if len(proxies) == 1 and not positive_in_denominator:
        return zero_loss(embeddings)
    with full_precision(embeddings):
        # −scale · distance² = 2 · scale · cosine − 2 · scale, and the constant cancels.
        nearness = 2 * scale * unit_length(embeddings) @ unit_length(proxies).T
        if positive_in_denominator:
            return F.cross_entropy(nearness, labels)
        own = labels[:, None]
        others = nearness.scatter(1, own, -torch.inf).logsumexp(dim=1, keepdim=True)
        return (others - nearness.gather(1, own)).mean()


@register_loss("proxy-nca")
class ProxyNCALoss(Loss):
    """Proxy-NCA loss (Movshovitz-Attias et al. 2017): compares items with one learnt proxy per class.

    Needs the number of classes in advance and labels in 0…classes−1; works with any batches. The proxies are parameters
    of the loss: pass them to the optimiser, usually with a higher learning rate.

    >>> loss = ProxyNCALoss(classes=3, dim=4)(torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 0, 1]))
    >>> loss.shape
    torch.Size([])
    """

    without_pairs = "it compares items with the proxies of all classes"

    def __init__(self, classes: int, dim: int, scale: float = 1.0, positive_in_denominator: bool = True) -> None:
        super().__init__()
        positive_number(classes=classes, dim=dim, scale=scale)
        self.proxies = nn.Parameter(torch.randn(classes, dim))
        self.scale = scale
        self.positive_in_denominator = positive_in_denominator

    def compute(self, embeddings: Tensor, labels: Labels) -> Tensor:
        return proxy_nca_loss(embeddings, labels, self.proxies, self.scale, self.positive_in_denominator)

    def extra_repr(self) -> str:
        classes, dim = self.proxies.shape
        return f"{classes=}, {dim=}, scale={self.scale}, positive_in_denominator={self.positive_in_denominator}"
