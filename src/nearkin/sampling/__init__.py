"""Which items make a batch."""

from nearkin.sampling.base import BatchSampler, share_of
from nearkin.sampling.groups import GroupSampler, PairSampler
from nearkin.sampling.neighbourhoods import ClusterIndex, NeighbourhoodSampler
from nearkin.sampling.partition import PartitionSampler
from nearkin.sampling.random import RandomSampler
from nearkin.sampling.ratio import ClassRatioSampler

__all__ = [
    "BatchSampler",
    "ClassRatioSampler",
    "ClusterIndex",
    "GroupSampler",
    "NeighbourhoodSampler",
    "PairSampler",
    "PartitionSampler",
    "RandomSampler",
    "share_of",
]
