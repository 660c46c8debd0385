"""Metric-learning losses for any training loop: ``loss(embeddings, labels)`` returns a scalar."""

from nearkin.losses.base import Loss
from nearkin.losses.contrastive import ContrastiveLoss, contrastive_loss
from nearkin.losses.cuda_graph import graphed
from nearkin.losses.facility_location import FacilityLocationLoss, facility_location_loss
from nearkin.losses.lifted import LiftedStructureLoss, lifted_structure_loss
from nearkin.losses.magnet import MagnetLoss, magnet_loss
from nearkin.losses.margin import MarginLoss, margin_loss
from nearkin.losses.nca import NCALoss, nca_loss
from nearkin.losses.npairs import NPairsLoss, n_pairs_loss
from nearkin.losses.pml import PMLLoss, for_pml
from nearkin.losses.proxynca import ProxyNCALoss, proxy_nca_loss
from nearkin.losses.rank import RankApproximationLoss, rank_approximation_loss
from nearkin.losses.registry import known_losses, make_loss, register_files, register_loss
from nearkin.losses.sampled_negatives import distance_weighted_sampling
from nearkin.losses.softmax import SoftmaxLoss, softmax_loss
from nearkin.losses.spectral import SpectralClusteringLoss, spectral_clustering_loss
from nearkin.losses.triplet import TripletSemiHardLoss, triplet_semi_hard_loss

__all__ = [
    "ContrastiveLoss",
    "FacilityLocationLoss",
    "LiftedStructureLoss",
    "Loss",
    "MagnetLoss",
    "MarginLoss",
    "NCALoss",
    "NPairsLoss",
    "PMLLoss",
    "ProxyNCALoss",
    "RankApproximationLoss",
    "SoftmaxLoss",
    "SpectralClusteringLoss",
    "TripletSemiHardLoss",
    "contrastive_loss",
    "distance_weighted_sampling",
    "facility_location_loss",
    "for_pml",
    "graphed",
    "known_losses",
    "lifted_structure_loss",
    "magnet_loss",
    "make_loss",
    "margin_loss",
    "n_pairs_loss",
    "nca_loss",
    "proxy_nca_loss",
    "rank_approximation_loss",
    "register_loss",
    "softmax_loss",
    "spectral_clustering_loss",
    "triplet_semi_hard_loss",
]

register_files(__name__, __path__)  # finds losses in files that are not imported above
