"""GoogLeNet with batch norm from torchvision, the backbone of several of the papers. timm does not have it.

Szegedy et al.: Going Deeper with Convolutions, 2015. torchvision's ImageNet weights are those of TensorFlow-Slim
(top-1 69.8 %), whose "5×5" branch has 3×3 kernels. The classifier, the dropout before it and the auxiliary heads are
left out. The output is 1,024 pooled features.
"""

from __future__ import annotations

from torch import Tensor, nn

from nearkin.data.transforms import Preprocess
from nearkin.models.backbones.registry import register_backbone

GOOGLENET = "torchvision:googlenet"
# The weights were trained on pixels in −1…1; torchvision's `transform_input` converts ImageNet-standardised ones.
HALF = (0.5, 0.5, 0.5)
PREPROCESS = Preprocess(224, 256, 3, HALF, HALF, interpolation="bilinear")


def imagenet_weights() -> dict[str, Tensor]:
    """torchvision's ImageNet weights, downloaded or from its cache."""
    from nearkin import _torchvision  # noqa: F401, I001 (first)
    from torchvision.models import GoogLeNet_Weights

    weights = GoogLeNet_Weights.IMAGENET1K_V1
    state: dict[str, Tensor] = weights.get_state_dict(progress=False, check_hash=True, weights_only=True)
    return state


@register_backbone(GOOGLENET, PREPROCESS, imagenet=imagenet_weights)
def googlenet(channels: int = 3) -> nn.Module:  # noqa: ARG001
    """An untrained GoogLeNet: images (batch, 3, size, size) to features (batch, 1024).

    >>> import torch
    >>> googlenet().eval()(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 1024])
    """
    from nearkin import _torchvision  # noqa: F401, I001 (first)
    from torchvision.models import GoogLeNet

    network: nn.Module = GoogLeNet(aux_logits=False, init_weights=True)
    network.dropout, network.fc = nn.Identity(), nn.Identity()
    return network
