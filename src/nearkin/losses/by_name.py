"""Losses by name, for configurations and command lines."""

from __future__ import annotations

from typing import Any

from torch import nn

from nearkin.errors import unknown_name
from nearkin.fields import build
from nearkin.losses.contrastive import ContrastiveLoss
from nearkin.losses.facility_location import FacilityLocationLoss
from nearkin.losses.lifted import LiftedStructureLoss
from nearkin.losses.magnet import MagnetLoss
from nearkin.losses.margin import MarginLoss
from nearkin.losses.nca import NCALoss
from nearkin.losses.npairs import NPairsLoss
from nearkin.losses.pml import PMLLoss, pml_losses
from nearkin.losses.proxynca import ProxyNCALoss
from nearkin.losses.rank import RankApproximationLoss
from nearkin.losses.softmax import SoftmaxLoss
from nearkin.losses.spectral import SpectralClusteringLoss
from nearkin.losses.triplet import TripletSemiHardLoss

_LOSSES: dict[str, type[nn.Module]] = {
    "contrastive": ContrastiveLoss,
    "facility-location": FacilityLocationLoss,
    "lifted": LiftedStructureLoss,
    "magnet": MagnetLoss,
    "margin": MarginLoss,
    "nca": NCALoss,
    "npairs": NPairsLoss,
    "proxy-nca": ProxyNCALoss,
    "rank": RankApproximationLoss,
    "softmax": SoftmaxLoss,
    "spectral": SpectralClusteringLoss,
    "triplet": TripletSemiHardLoss,
}
_PML = "pml:"


def make_loss(name: str, **settings: Any) -> nn.Module:
    """A loss by name, with some of its settings changed; ``pml:<Name>`` is a loss of pytorch-metric-learning.

    >>> make_loss("rank", alpha=2.0)
    RankApproximationLoss(alpha=2.0, eps=0.0001, sighted=False)
    >>> make_loss("pml:CircleLoss", gamma=64).loss.gamma
    64
    """
    if name.startswith(_PML):
        return PMLLoss(name.removeprefix(_PML), **settings)
    if name not in _LOSSES:
        raise unknown_name("loss", name, [*_LOSSES, f"{_PML}<Name>"])
    return build(_LOSSES[name], settings, f"loss '{name}'")


def known_losses() -> list[str]:
    """All names that ``make_loss`` knows.

    >>> {"rank", "pml:CircleLoss"} <= set(known_losses())
    True
    """
    return [*_LOSSES, *(_PML + name for name in pml_losses())]
